"""A retriever that compresses what it finds: its search and its calls begin early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
from langchain_classic.chains import LLMChain
from langchain_classic.output_parsers.boolean import BooleanOutputParser
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor, LLMChainFilter
from langchain_classic.retrievers.document_compressors.listwise_rerank import LLMListwiseRerank
from langchain_classic.retrievers.multi_query import LineListOutputParser
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever

from langchain_weftline import ChatWeftline, WeftlineVectorStore, accelerate
from tests.integrations.ahead_chains import CHAT, SUBMIT, both
from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.integrations.shelves import (
    QUESTION,
    STORE,
    Shelf,
    fill,
    filled,
    format_docs,
    in_client,
    in_server,
    model,
    rag,
    run,
    sent,
)
from tests.integrations.tiers import outcome

RELEVANT = PromptTemplate.from_template(
    "Relevant? {context} {question}", output_parser=BooleanOutputParser()
)
RANK = ChatPromptTemplate.from_template("Rank.\n{context}\n{query}")
RULES = [
    ("Answer from this", "The weft."),
    ("Rank.", '{"ranked_document_ids": [3, 1, 0]}'),
    ("Relevant? Soup", "No."),
    ("Relevant? On all", "Perhaps."),
    ("Relevant?", "Yes, it is."),
    ("Soup is hot", "NO_OUTPUT"),
    ("Rome is old", " an old town\n"),
    ("", "of Rome"),
]

places = pytest.mark.parametrize("place", ["server", "client"])


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    """A server that answers by rules and has the texts in a store."""
    url = start_script(RULES, *STORE)
    fill(url)
    return url


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with filled() as url:
        yield url


def compressor(kind: str, llm: ChatWeftline) -> Any:
    match kind:
        case "extract":
            return LLMChainExtractor.from_llm(llm)
        case "filter":
            return LLMChainFilter.from_llm(llm, RELEVANT)
        case "text":  # without a parser that gives true or false, nothing is kept
            prompt = PromptTemplate.from_template("Relevant? {context} {question}")
            return LLMChainFilter.from_llm(llm, prompt)
    return LLMListwiseRerank.from_llm(llm, prompt=RANK, top_n=2)


def compressing(kind: str, recording: Recording, base: BaseRetriever | str, **options: Any) -> Any:
    if isinstance(base, str):
        base = in_server(recording, k=4) if base == "server" else in_client(k=4)
    made = compressor(kind, model(recording, **options))
    return ContextualCompressionRetriever(base_compressor=made, base_retriever=base)


@both
@places
@pytest.mark.parametrize(("kind", "calls"), [("extract", 4), ("filter", 4), ("text", 4)])
def test_its_calls_are_one_request(
    recording: Recording, kind: str, calls: int, place: str, is_async: bool
) -> None:
    """The model is asked about all documents in one submit, and LangChain keeps some of them.

    The server asks about those that it has found as an each step. The answer reads what is kept.
    """
    chain = rag(compressing(kind, recording, place) | format_docs, recording)
    expected = run(chain, is_async)
    assert sent(recording).count(CHAT) == calls + 1
    compiled = accelerate(chain)
    assert run(compiled, is_async) == expected == "The weft."
    (body,) = recording.bodies(SUBMIT)
    assert sent(recording) == [SUBMIT, CHAT]
    steps = {"server": ["embed", "search", "each"], "client": []}[place]
    assert [step["kind"] for step in body.get("steps", ())] == steps
    assert len(body.get("calls", ())) == (0 if place == "server" else calls)


@both
@places
@pytest.mark.parametrize("kind", ["extract", "filter", "text", "rank"])
def test_the_documents_are_the_plain_ones(
    recording: Recording, kind: str, place: str, is_async: bool
) -> None:
    """The same documents with ids and metadata, in the same order."""
    retriever = compressing(kind, recording, place)
    expected = run(retriever, is_async)
    assert len(expected) == {"extract": 3, "filter": 3, "text": 0, "rank": 2}[kind]
    sent(recording)
    assert run(accelerate(retriever), is_async) == expected
    ranked = {"server": [SUBMIT, CHAT], "client": [CHAT]}[place]  # one call, on all documents
    assert sent(recording) == (ranked if kind == "rank" else [SUBMIT])


@places
def test_the_prompts_are_the_plain_ones(echo: str, place: str) -> None:
    """The model echoes its prompts, so the answer shows the prompts of all calls."""
    with recorded(echo) as recording:
        found = compressing("extract", recording, place, max_tokens=2000) | format_docs
        chain = rag(found, recording, max_tokens=4000)
        expected = chain.invoke(QUESTION)
        assert "Soup is hot." in expected and QUESTION in expected
        sent(recording)
        assert accelerate(chain).invoke(QUESTION) == expected
        assert sent(recording) == [SUBMIT, CHAT]


@both
@pytest.mark.parametrize("kind", ["extract", "filter", "rank"])
def test_nothing_is_found(recording: Recording, kind: str, is_async: bool) -> None:
    """The model is not asked."""
    none = in_server(recording, filter={"n": 17})
    retriever = compressing(kind, recording, none)
    assert run(retriever, is_async) == run(accelerate(retriever), is_async) == []


@both
@pytest.mark.parametrize("why", ["store", "shelf", "model", "parser"])
@pytest.mark.parametrize("kind", ["extract", "filter"])
def test_errors_are_the_plain_ones(
    recording: Recording, kind: str, why: str, is_async: bool
) -> None:
    """Of a store, of a retriever of the client, of the model, and of the parser of a verdict."""
    nowhere = WeftlineVectorStore(base_url=recording.url, store="none").as_retriever()
    shelves = {"store": nowhere, "shelf": Shelf(refused=QUESTION), "model": in_server(recording)}
    base = shelves.get(why, Shelf())
    made = compressor(kind, model(recording, model="nosuch" if why == "model" else "default"))
    retriever = ContextualCompressionRetriever(base_compressor=made, base_retriever=base)
    plain = outcome(lambda: run(retriever, is_async))
    assert (plain[0] == "value") == (kind == "extract" and why == "parser")
    assert outcome(lambda: run(accelerate(retriever), is_async)) == plain


@both
def test_over_several_queries(recording: Recording, is_async: bool) -> None:
    """Another retriever that asks a model may find the documents."""
    queries = PromptTemplate.from_template("Queries on {question}")
    several = MultiQueryRetriever.from_llm(in_server(recording), model(recording), prompt=queries)
    chain = rag(compressing("extract", recording, several) | format_docs, recording)
    expected = run(chain, is_async)
    sent(recording)
    assert run(accelerate(chain), is_async) == expected
    assert sent(recording) == [SUBMIT, SUBMIT, CHAT]


def test_what_langchain_still_runs(recording: Recording) -> None:
    """Another chain says why, and gives the same."""
    llm = model(recording)
    extract = LLMChainExtractor.from_llm(llm)
    reasons = {
        "its chain is of another class than usual": RELEVANT | llm | StrOutputParser() | str,
    }
    for reason, chain in reasons.items():
        retriever = ContextualCompressionRetriever(
            base_compressor=extract.model_copy(update={"llm_chain": chain}), base_retriever=Shelf()
        )
        compiled = accelerate(retriever)
        assert reason in [step.why for step in compiled.explain(QUESTION).in_client]
        plain = outcome(lambda it=retriever: it.invoke(QUESTION))
        assert outcome(lambda it=compiled: it.invoke(QUESTION)) == plain


@both
@pytest.mark.parametrize("place", ["server", "shelf"])
def test_queries_of_an_llm_chain(recording: Recording, place: str, is_async: bool) -> None:
    """A MultiQueryRetriever with the older LLMChain is one request over a store of the server."""
    prompt = PromptTemplate.from_template("Queries on {question}")
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # LangChain says so once a process
        chain = LLMChain(llm=model(recording), prompt=prompt, output_parser=LineListOutputParser())
    base = in_server(recording) if place == "server" else Shelf()
    retriever = MultiQueryRetriever(retriever=base, llm_chain=chain)
    whole = rag(retriever | format_docs, recording)
    expected = run(whole, is_async)
    assert sent(recording).count(CHAT) == 2
    assert run(accelerate(whole), is_async) == expected
    assert sent(recording) == ([SUBMIT] if place == "server" else [SUBMIT, CHAT])
    noisy = retriever.model_copy(update={"llm_chain": chain.model_copy(update={"verbose": True})})
    told = accelerate(noisy).explain(QUESTION).in_client
    assert "it does more than to ask the question" in [step.why for step in told]
