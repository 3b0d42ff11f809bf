"""A QueryFusionRetriever over the server's store: its queries and searches are one request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank

from tests.integrations.conftest import RETRIEVES, StartServer, recorded_by_default
from tests.integrations.recording import Recording
from tests.integrations.test_llama_query import CHAT, SUBMIT, filled

RULES = [
    ("Generate 3 search queries", "red fox\n a whale \n\nblue whale\none too many\n"),
    ("Generate 1 search queries", "`red fox`"),
    ("existing answer", "It is blue, too."),
    ("", "It is red."),
]
ASYNC = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture(scope="module")
def rules_url(start_script: StartServer) -> str:
    return start_script(RULES, *RETRIEVES)


@pytest.fixture
def recording(rules_url: str) -> Iterator[Recording]:
    with recorded_by_default(rules_url) as recording:
        yield recording


@pytest.fixture
def index(recording: Recording) -> Iterator[VectorStoreIndex]:
    yield from filled()


def llm(ahead: bool = True, **how: Any) -> Weftline:
    return Weftline(max_tokens=64, context_window=3900, ahead=ahead, **how)


def fusion(index: VectorStoreIndex, model: Any, **how: Any) -> QueryFusionRetriever:
    retrievers = [index.as_retriever(similarity_top_k=2)]
    options = {"mode": "reciprocal_rerank", "similarity_top_k": 3, "use_async": False, **how}
    return QueryFusionRetriever(retrievers, llm=model, **options)


def run(retriever: QueryFusionRetriever, is_async: bool) -> list[tuple[str, float | None]]:
    if is_async:
        found = asyncio.run(retriever.aretrieve("red whale"))
    else:
        found = retriever.retrieve("red whale")
    return [(one.node.get_content(), one.score) for one in found]


def posted(recording: Recording) -> list[str]:
    """The requests that carry work."""
    paths = [path for verb, path, _ in recording.requests if verb == "POST"]
    recording.requests.clear()
    return paths


@ASYNC
@pytest.mark.parametrize("mode", ["reciprocal_rerank", "simple", "relative_score"])
@pytest.mark.parametrize("use_async", [False, True], ids=["in_turn", "at_once"])
def test_queries_and_searches_are_one_request(
    index: VectorStoreIndex, recording: Recording, mode: str, use_async: bool, is_async: bool
) -> None:
    """The model writes four lines, of which LlamaIndex takes three. One of them has white space
    around it, so its search is an ordinary one. Documents and scores are LlamaIndex's."""
    how = {"mode": mode, "use_async": use_async}
    posted(recording)
    plain = run(fusion(index, llm(ahead=False), **how), is_async)
    assert posted(recording).count(CHAT) == 1
    assert run(fusion(index, llm(), **how), is_async) == plain and len(plain) == 3
    [first, *rest] = recording.bodies(SUBMIT)
    assert posted(recording) == [SUBMIT, SUBMIT]
    assert [step["kind"] for step in first["steps"]] == ["embed", "search"] * 2
    assert [step["in"]["value"] for one in rest for step in one["steps"][:1]] == ["a whale"]


def test_a_line_in_code_marks(index: VectorStoreIndex, recording: Recording) -> None:
    """LlamaIndex takes the marks off, and asks for the query itself."""
    plain = run(fusion(index, llm(ahead=False), num_queries=2), False)
    posted(recording)
    assert run(fusion(index, llm(), num_queries=2), False) == plain
    assert posted(recording) == [SUBMIT, SUBMIT]


def test_several_retrievers(index: VectorStoreIndex, recording: Recording) -> None:
    """Each retriever of the server has its searches in the graph. One of the client has none."""

    def make(model: Any) -> QueryFusionRetriever:
        made = fusion(index, model)
        made._retrievers.append(index.as_retriever(similarity_top_k=1))
        return made

    plain = run(make(llm(ahead=False)), False)
    posted(recording)
    assert run(make(llm()), False) == plain
    assert len(recording.bodies(SUBMIT)[0]["steps"]) == 8


def advanced(index: VectorStoreIndex, model: Any) -> RetrieverQueryEngine:
    """Query expansion, searches, fusion, rerank and a refined answer."""
    refine = get_response_synthesizer(response_mode="refine", llm=model)  # type: ignore[arg-type]
    return RetrieverQueryEngine(
        fusion(index, model), refine, node_postprocessors=[WeftlineRerank(top_n=2)]
    )


def test_advanced_rag(index: VectorStoreIndex, recording: Recording) -> None:
    """The same answer and sources. LlamaIndex fuses and ranks between three graphs."""
    posted(recording)
    plain = advanced(index, llm(ahead=False)).query("red whale")
    assert posted(recording) == [CHAT, *[SUBMIT] * 5, CHAT, CHAT]
    made = advanced(index, llm()).query("red whale")
    assert str(made) == str(plain)
    assert [(one.node_id, one.score) for one in made.source_nodes] == [
        (one.node_id, one.score) for one in plain.source_nodes
    ]
    assert posted(recording) == [SUBMIT] * 4, "queries, one query's own search, rerank, answer"


class Mine(QueryFusionRetriever):
    """A retriever of the user's, of which only the searches are known."""


def test_a_subclass_goes_one_by_one(index: VectorStoreIndex, recording: Recording) -> None:
    made = Mine([index.as_retriever()], llm=llm(), use_async=False)
    made.retrieve("red whale")
    assert posted(recording).count(CHAT) == 1
