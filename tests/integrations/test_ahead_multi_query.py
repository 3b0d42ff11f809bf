"""Retrievers that ask a model or other retrievers: their calls and searches are one graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from langchain_weftline import WeftlineVectorStore, accelerate
from tests.integrations.ahead_chains import CHAT, SUBMIT, both
from tests.integrations.recording import Recording
from tests.integrations.shelves import (
    QUERIES,
    QUESTION,
    Shelf,
    filled,
    format_docs,
    in_client,
    in_server,
    model,
    rag,
    run,
    sent,
    several,
)
from tests.integrations.tiers import outcome


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with filled() as url:
        yield url


def ensemble_of(retrievers: list[Any], **how: Any) -> Any:
    return EnsembleRetriever(retrievers=retrievers, **how)


@both
def test_queries_searches_and_answer_are_one_request(recording: Recording, is_async: bool) -> None:
    """A model writes queries, the store is searched for each, and a model reads each text once."""
    plain = rag(several(recording) | format_docs, recording)
    expected = run(plain, is_async)
    assert sent(recording).count(CHAT) == 2
    assert expected.count("Rome is old.") == 1
    compiled = accelerate(plain)
    assert run(compiled, is_async) == expected
    (body,) = recording.bodies(SUBMIT)
    assert sent(recording) == [SUBMIT]
    assert [step["kind"] for step in body["steps"]] == ["embed", "search"]
    (prompt,) = [call for call in body["calls"] if call["name"] != "context.queries"]
    assert {"op": "texts", "separator": "\n\n", "unique": True} in [
        spec for given in prompt["placeholders"] for spec in given.get("transforms", ())
    ]
    assert str(compiled.explain(QUESTION).after) == "1 request, 1 in a row"


@both
@pytest.mark.parametrize("original", [False, True], ids=["queries", "original"])
@pytest.mark.parametrize("place", ["server", "client", "shelf"])
def test_the_documents_are_the_plain_ones(
    recording: Recording, place: str, original: bool, is_async: bool
) -> None:
    """The same documents with ids and metadata, in the same order, wherever they are found."""
    base = {"server": in_server(recording), "client": in_client(), "shelf": Shelf()}[place]
    retriever = several(recording, base, include_original=original)
    expected = run(retriever, is_async)
    sent(recording)
    assert len(expected) > 2
    assert run(accelerate(retriever), is_async) == expected
    assert sent(recording) == [SUBMIT]


@both
@pytest.mark.parametrize("original", [False, True], ids=["queries", "original"])
def test_what_the_client_does_with_the_documents(
    recording: Recording, original: bool, is_async: bool
) -> None:
    """A function of the client formats what the server found, and the answer's call follows."""
    shown = RunnableLambda(lambda docs: [doc.metadata["n"] for doc in docs])
    plain = rag(
        several(recording, in_server(recording), include_original=original) | shown, recording
    )
    expected = run(plain, is_async)
    sent(recording)
    assert run(accelerate(plain), is_async) == expected
    assert sent(recording) == [SUBMIT, CHAT]


@both
@pytest.mark.parametrize("place", ["server", "shelf"])
def test_a_model_without_queries(recording: Recording, place: str, is_async: bool) -> None:
    """An empty answer has no lines, so nothing is searched for and nothing is found."""
    base = in_server(recording) if place == "server" else Shelf()
    silent = model(recording).bind(stop=["u"])  # the echo begins with the role user
    retriever = MultiQueryRetriever.from_llm(base, silent, prompt=QUERIES)
    assert run(retriever, is_async) == []
    sent(recording)
    assert run(accelerate(retriever), is_async) == []
    assert sent(recording) == [SUBMIT]


def test_queries_that_are_no_list_of_texts_are_searched_for_in_the_client(
    recording: Recording,
) -> None:
    """A JSON answer may be anything. LangChain iterates over what it is."""
    prompt = PromptTemplate.from_template('```json\n["{question}", "Rome"]\n```')
    retriever = several(recording)
    chain = prompt | model(recording) | JsonOutputParser()
    retriever = retriever.model_copy(update={"llm_chain": chain})
    expected = retriever.invoke(QUESTION)
    sent(recording)
    assert accelerate(retriever).invoke(QUESTION) == expected
    assert sent(recording)[0] == SUBMIT
    told = accelerate(retriever).explain(QUESTION).in_client
    assert "its chain may give something else than texts" in [step.why for step in told]


@both
@pytest.mark.parametrize("place", ["server", "shelf"])
def test_a_search_that_fails(recording: Recording, place: str, is_async: bool) -> None:
    """The error is the plain one: of the store in the server, and of a retriever of the client."""
    nowhere = WeftlineVectorStore(base_url=recording.url, store="none").as_retriever()
    base = nowhere if place == "server" else Shelf(refused="Rome")
    retriever = several(recording, base)
    plain = outcome(lambda: run(retriever, is_async))
    assert plain[0] != "value"
    assert outcome(lambda: run(accelerate(retriever), is_async)) == plain


class Words(BaseRetriever):
    """A retriever of the client that notes in which order it is asked."""

    name: str
    asked: Any

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        self.asked.append(self.name)
        return [Document("Soup is hot."), Document(self.name)]


@both
def test_an_ensemble(recording: Recording, is_async: bool) -> None:
    """The searches of the server begin early. LangChain asks all retrievers and ranks."""
    asked: list[str] = []
    texts = RunnableLambda(lambda query: ["The weft crosses the warp.", query])
    ensemble = ensemble_of(
        [
            Words(name="first", asked=asked),
            in_server(recording),
            Words(name="second", asked=asked),
            several(recording, in_server(recording, filter={"n": 3})),
            texts,
        ],
        weights=[0.1, 0.3, 0.1, 0.2, 0.3],
    )
    plain = rag(ensemble | format_docs, recording)
    expected, documents = run(plain, is_async), run(ensemble, is_async)
    sent(recording)
    assert run(accelerate(plain), is_async) == expected
    assert sent(recording) == [SUBMIT, CHAT]
    assert run(accelerate(ensemble), is_async) == documents
    assert sent(recording) == [SUBMIT]
    assert asked == ["first", "second"] * 4
