"""An EnsembleRetriever over stores of the server: the server ranks as LangChain does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
)

from langchain_weftline import WeftlineRerank, accelerate
from tests.integrations.ahead_chains import CHAT, SUBMIT, both
from tests.integrations.recording import Recording
from tests.integrations.shelves import (
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


def ensemble(recording: Recording, **how: Any) -> Any:
    """Two searches and the queries of a model, whose documents are partly the same."""
    found = [in_server(recording, k=3), several(recording), in_server(recording, filter={"n": 0})]
    return EnsembleRetriever(retrievers=found, **how)


@both
@pytest.mark.parametrize(
    "how",
    [{}, {"weights": [0.1, 0.2, 0.7]}, {"weights": [0.0, 1.0, 0.3], "c": 1}],
    ids=["equal", "weighted", "steep"],
)
def test_searches_ranks_and_answer_are_one_request(
    recording: Recording, how: dict[str, Any], is_async: bool
) -> None:
    """The answer reads the documents in LangChain's order. The documents are LangChain's own."""
    retriever = ensemble(recording, **how)
    plain = rag(retriever | format_docs, recording)
    expected, documents = run(plain, is_async), run(retriever, is_async)
    sent(recording)
    compiled = accelerate(plain)
    assert run(compiled, is_async) == expected
    [body] = recording.bodies(SUBMIT)
    assert sent(recording) == [SUBMIT]
    kinds = [step["kind"] for step in body["steps"]]
    assert kinds == ["embed", "search"] * 3 + ["merge", "merge"]
    assert run(accelerate(retriever), is_async) == documents and len(documents) == 4
    assert sent(recording) == [SUBMIT]


@both
def test_what_was_ranked_is_reranked(recording: Recording, is_async: bool) -> None:
    best = WeftlineRerank(base_url=recording.url, top_n=2)
    retriever = ContextualCompressionRetriever(
        base_compressor=best, base_retriever=ensemble(recording)
    )
    plain = rag(retriever | format_docs, recording)
    expected = run(plain, is_async)
    sent(recording)
    assert run(accelerate(plain), is_async) == expected
    assert sent(recording) == [SUBMIT]


def test_a_key_of_the_metadata(recording: Recording) -> None:
    """LangChain tells the documents apart, and the answer follows."""
    plain = rag(ensemble(recording, id_key="n") | format_docs, recording)
    expected = run(plain, False)
    sent(recording)
    assert run(accelerate(plain), False) == expected
    assert sent(recording) == [SUBMIT, CHAT]


def test_a_retriever_of_the_client(recording: Recording) -> None:
    """What it finds is known only in the run."""
    found = [in_server(recording), Shelf()]
    plain = rag(EnsembleRetriever(retrievers=found, weights=[0.5, 0.5]) | format_docs, recording)
    expected = run(plain, False)
    sent(recording)
    assert run(accelerate(plain), False) == expected
    assert sent(recording) == [SUBMIT, CHAT]
