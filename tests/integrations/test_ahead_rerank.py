"""A retriever whose documents are reranked in the server: one request, and the plain documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from langchain_weftline import WeftlineRerank, accelerate
from tests.integrations.ahead_chains import CHAT, SUBMIT, both
from tests.integrations.recording import Recording
from tests.integrations.shelves import (
    QUESTION,
    Shelf,
    filled,
    format_docs,
    in_server,
    rag,
    run,
    sent,
    several,
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with filled() as url:
        yield url


def reranked(recording: Recording, found: BaseRetriever, **how: Any) -> Any:
    rerank = WeftlineRerank(base_url=recording.url, **{"top_n": 2, **how})
    return ContextualCompressionRetriever(base_compressor=rerank, base_retriever=found)


def seen(document: Document) -> tuple[Any, ...]:
    return document.id, document.page_content, document.metadata


@both
def test_queries_searches_rerank_and_answer_are_one_request(
    recording: Recording, is_async: bool
) -> None:
    """A model writes queries, each is searched for, the documents are ranked, and a model reads the
    best ones. The plain program makes seven requests for four queries."""
    plain = rag(reranked(recording, several(recording)) | format_docs, recording)
    expected = run(plain, is_async)
    assert sent(recording) == [CHAT, *[SUBMIT] * 5, CHAT]
    compiled = accelerate(plain)
    assert run(compiled, is_async) == expected
    [body] = recording.bodies(SUBMIT)
    assert sent(recording) == [SUBMIT]
    kinds = [step["kind"] for step in body["steps"]]
    assert kinds == ["embed", "search", "merge", "rerank"]
    assert str(compiled.explain(QUESTION).after) == "1 request, 1 in a row"


@both
@pytest.mark.parametrize("top_n", [1, 3, None])
@pytest.mark.parametrize("queries", [False, True], ids=["question", "queries"])
def test_the_documents_are_the_plain_ones(
    recording: Recording, queries: bool, top_n: int | None, is_async: bool
) -> None:
    """The same documents with ids, metadata and scores, in the same order."""
    found = several(recording) if queries else in_server(recording, k=3)
    retriever = reranked(recording, found, top_n=top_n)
    expected = [seen(document) for document in run(retriever, is_async)]
    sent(recording)
    assert len(expected) == (top_n or (4 if queries else 3)) and "relevance_score" in expected[0][2]
    assert [seen(document) for document in run(accelerate(retriever), is_async)] == expected
    assert sent(recording) == [SUBMIT]


def test_a_search_without_a_hit(recording: Recording) -> None:
    """LangChain asks no reranker then, and the answer reads nothing."""
    nothing = in_server(recording, filter={"n": 99})
    plain = rag(reranked(recording, nothing) | format_docs, recording)
    expected = run(plain, False)
    sent(recording)
    assert run(accelerate(plain), False) == expected
    assert sent(recording) == [SUBMIT]


def test_documents_of_the_client_are_ranked_in_the_run(recording: Recording) -> None:
    """Their texts are known only in the run, so the rerank and the answer follow."""
    plain = rag(reranked(recording, Shelf()) | format_docs, recording)
    expected = run(plain, False)
    assert sent(recording) == [SUBMIT, CHAT]
    assert run(accelerate(plain), False) == expected
    assert sent(recording) == [SUBMIT, CHAT]


class Reversed(WeftlineRerank):
    """A reranker of the user's, which gives the documents in another order."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return super().compress_documents(documents[::-1], query, callbacks)[::-1]


def test_a_subclass_may_do_anything(recording: Recording) -> None:
    """Only the search is sent ahead for it, and the result is its own."""
    made = Reversed(base_url=recording.url, top_n=2)
    retriever = ContextualCompressionRetriever(
        base_compressor=made, base_retriever=in_server(recording)
    )
    chain = rag(retriever | format_docs, recording)
    expected = run(chain, False)
    sent(recording)
    assert run(accelerate(chain), False) == expected
    assert sent(recording) == [SUBMIT, SUBMIT, CHAT]


def test_a_reranker_without_a_server(recording: Recording) -> None:
    """One that is not served: the error is that of the plain program."""
    plain = rag(reranked(recording, in_server(recording), model="nosuch") | format_docs, recording)
    errors = []
    for chain in (plain, accelerate(plain)):
        with pytest.raises(Exception) as caught:
            run(chain, False)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
