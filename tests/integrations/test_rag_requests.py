"""How many requests the programs of docs/rag.md make, plainly and ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
)
from langchain_classic.retrievers.document_compressors import LLMChainFilter
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import CitationQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank
from llama_index.vector_stores.weftline import WeftlineVectorStore

import langchain_weftline
from langchain_weftline import accelerate
from tests.integrations import test_llama_routing
from tests.integrations.conftest import RETRIEVES, recorded_by_default
from tests.integrations.recording import Recording
from tests.integrations.shelves import fill, format_docs, in_server, model, rag
from tests.integrations.test_llama_fusion import advanced, fusion
from tests.integrations.test_llama_query import filled

OPTIONS = RETRIEVES

DOCS = Path(__file__).parents[2] / "docs" / "rag.md"
RULES = [
    ("Generate 3 search queries", "red fox\na whale\nblue whale"),
    ("You are an AI language model assistant", "rivers\ntowns\nsoup"),
    ("return YES if the context", "YES"),
    ("A list of documents is shown", "Doc: 1, Relevance: 9"),
    ("Write a passage", "The Tiber is a river."),
    *test_llama_routing.RULES[:-1],
    ("", "It is red."),
]


@pytest.fixture(scope="module")
def recording(url: str) -> Iterator[Recording]:
    """A store with the texts of both frameworks, to which requests without an address go."""
    with recorded_by_default(url) as recording:
        fill(url)
        for _ in filled():
            yield recording


Found = Callable[[Recording], Any]


def several(recording: Recording) -> Any:
    return MultiQueryRetriever.from_llm(in_server(recording), model(recording))


def reranked(recording: Recording) -> Any:
    best = langchain_weftline.WeftlineRerank(base_url=recording.url, top_n=2)
    found = several(recording)
    return ContextualCompressionRetriever(base_compressor=best, base_retriever=found)


def ensemble(recording: Recording) -> Any:
    found = [in_server(recording), several(recording)]
    return EnsembleRetriever(retrievers=found, weights=[0.5, 0.5])


def filtered(recording: Recording) -> Any:
    keep = LLMChainFilter.from_llm(model(recording))
    found = in_server(recording, k=4)
    return ContextualCompressionRetriever(base_compressor=keep, base_retriever=found)


def hypothetical(recording: Recording) -> Any:
    """HyDE, as a chain."""
    passage = PromptTemplate.from_template("Write a passage about {question}")
    return passage | model(recording) | StrOutputParser() | in_server(recording)


def langchain(find: Found) -> Callable[[Recording, bool], None]:
    def run(recording: Recording, ahead: bool) -> None:
        chain = rag(find(recording) | format_docs, recording)
        (accelerate(chain) if ahead else chain).invoke("Which rivers?")

    return run


def llama(make: Callable[[VectorStoreIndex, Weftline], Any]) -> Callable[[Recording, bool], None]:
    def run(recording: Recording, ahead: bool) -> None:
        index = VectorStoreIndex.from_vector_store(
            WeftlineVectorStore(), embed_model=WeftlineEmbedding()
        )
        llm = Weftline(max_tokens=64, context_window=3900, ahead=ahead)
        make(index, llm).query("red whale")

    return run


def ranked(index: VectorStoreIndex, llm: Weftline) -> Any:
    return index.as_query_engine(llm=llm, node_postprocessors=[WeftlineRerank(top_n=1)])


def chosen(index: VectorStoreIndex, llm: Weftline) -> Any:
    best = LLMRerank(llm=llm, top_n=1, choice_batch_size=1)
    return index.as_query_engine(llm=llm, similarity_top_k=3, node_postprocessors=[best])


def two_steps(index: VectorStoreIndex, llm: Weftline) -> Any:
    return test_llama_routing.steps(index, llm, num_steps=2)


def of_client(index: VectorStoreIndex, llm: Weftline) -> Any:
    """A query of a store in the client's memory."""
    texts = [Document(text=text) for text in test_llama_routing.ANIMALS]
    own = VectorStoreIndex.from_documents(texts, embed_model=MockEmbedding(embed_dim=32))
    return own.as_query_engine(llm=llm)


def fused_of_client(index: VectorStoreIndex, llm: Weftline) -> Any:
    """The same beside a store of the server."""
    found = fusion(index, llm)
    found._retrievers.append(of_client(index, llm).retriever)
    found._retriever_weights = [0.5, 0.5]
    return RetrieverQueryEngine(found, get_response_synthesizer(llm=llm))


PROGRAMS: dict[str, Callable[[Recording, bool], None]] = {
    "LangChain: a retriever, an answer": langchain(in_server),
    "`MultiQueryRetriever` of three lines, `WeftlineRerank`, an answer": langchain(reranked),
    "`EnsembleRetriever` of a retriever and such a `MultiQueryRetriever`, an answer": langchain(
        ensemble
    ),
    "HyDE: a call, a retriever, an answer": langchain(hypothetical),
    "`LLMChainFilter` of four documents, an answer": langchain(filtered),
    "LlamaIndex: `RetrieverQueryEngine`": llama(lambda index, llm: index.as_query_engine(llm=llm)),
    "the same with `WeftlineRerank`": llama(ranked),
    "`QueryFusionRetriever` of four queries, `WeftlineRerank`, a refine of two nodes": llama(
        advanced
    ),
    "the same over a store of the client, too, and an answer": llama(fused_of_client),
    "`RouterQueryEngine` over two stores of the server and a list": llama(
        test_llama_routing.router
    ),
    "`SubQuestionQueryEngine` of three parts": llama(test_llama_routing.sub_questions),
    "`TransformQueryEngine` with HyDE": llama(test_llama_routing.hyde),
    "`MultiStepQueryEngine` of two steps": llama(two_steps),
    "`LLMRerank` of three nodes one by one, an answer": llama(chosen),
    "`CitationQueryEngine`": llama(
        lambda index, llm: CitationQueryEngine.from_args(index, llm=llm)
    ),
    "`RetrieverQueryEngine` over a store of the client": llama(of_client),
}


def told() -> dict[str, tuple[int, int]]:
    """The rows of the table: requests of the plain program, and of the one ahead."""
    lines = DOCS.read_text(encoding="utf-8").partition("## How many requests")[2].splitlines()
    rows = (line.strip("|").split(" | ") for line in lines if line.startswith("| "))
    return {row[0].strip(): (int(row[1]), int(row[2])) for row in rows if row[1].isdigit()}


def test_the_table_has_these_programs() -> None:
    assert [*told()] == [*PROGRAMS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_requests(recording: Recording, name: str) -> None:
    """As many requests as the table says, not counting those that close sessions."""
    counts = []
    for ahead in (False, True):
        recording.requests.clear()
        PROGRAMS[name](recording, ahead)
        counts.append(sum(verb == "POST" for verb, _, _ in recording.requests))
    assert tuple(counts) == told()[name]
