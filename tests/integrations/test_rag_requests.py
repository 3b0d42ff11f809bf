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
from llama_index.core import VectorStoreIndex
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank
from llama_index.vector_stores.weftline import WeftlineVectorStore

import langchain_weftline
from langchain_weftline import accelerate
from tests.integrations.conftest import RETRIEVES, StartServer, recorded_by_default
from tests.integrations.recording import Recording
from tests.integrations.shelves import fill, format_docs, in_server, model, rag
from tests.integrations.test_llama_fusion import advanced
from tests.integrations.test_llama_query import filled

DOCS = Path(__file__).parents[2] / "docs" / "rag.md"
RULES = [
    ("Generate 3 search queries", "red fox\na whale\nblue whale"),
    ("You are an AI language model assistant", "rivers\ntowns\nsoup"),
    ("", "It is red."),
]


@pytest.fixture(scope="module")
def rules_url(start_script: StartServer) -> str:
    return start_script(RULES, *RETRIEVES)


@pytest.fixture(scope="module")
def recording(rules_url: str) -> Iterator[Recording]:
    """A store with the texts of both frameworks, to which requests without an address go."""
    with recorded_by_default(rules_url) as recording:
        fill(rules_url)
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


PROGRAMS: dict[str, Callable[[Recording, bool], None]] = {
    "LangChain: a retriever, an answer": langchain(in_server),
    "`MultiQueryRetriever` of three lines, `WeftlineRerank`, an answer": langchain(reranked),
    "`EnsembleRetriever` of a retriever and such a `MultiQueryRetriever`, an answer": langchain(
        ensemble
    ),
    "LlamaIndex: `RetrieverQueryEngine`": llama(lambda index, llm: index.as_query_engine(llm=llm)),
    "the same with `WeftlineRerank`": llama(ranked),
    "`QueryFusionRetriever` of four queries, `WeftlineRerank`, a refine of two nodes": llama(
        advanced
    ),
    "`CitationQueryEngine`": llama(
        lambda index, llm: CitationQueryEngine.from_args(index, llm=llm)
    ),
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
