"""A QueryFusionRetriever over the server's store: one request, with what its engine does then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank

from tests.integrations.conftest import RETRIEVES
from tests.integrations.recording import Recording
from tests.integrations.test_llama_query import CHAT, SUBMIT, filled

OPTIONS = RETRIEVES

RULES = [
    ("Generate 3 search queries", "red fox\n a whale \n\nblue whale\none too many\n"),
    ("Generate 1 search queries", "`red fox`"),
    ("Generate 2 search queries", "red whale\nred fox\n"),
    ("existing answer", "It is blue, too."),
    ("", "It is red."),
]
ASYNC = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


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
    """The model writes four lines, of which LlamaIndex strips and takes three. Documents and scores
    are LlamaIndex's."""
    how = {"mode": mode, "use_async": use_async}
    posted(recording)
    plain = run(fusion(index, llm(ahead=False), **how), is_async)
    assert posted(recording).count(CHAT) == 1
    assert run(fusion(index, llm(), **how), is_async) == plain and len(plain) == 3
    [body] = recording.bodies(SUBMIT)
    assert posted(recording) == [SUBMIT]
    assert [step["kind"] for step in body["steps"]] == ["embed", "search"]


@pytest.mark.parametrize("queries", [2, 3])
def test_what_llama_index_does_to_lines(
    index: VectorStoreIndex, recording: Recording, queries: int
) -> None:
    """It takes code marks off. It asks each line, also one that it has asked before."""
    plain = run(fusion(index, llm(ahead=False), num_queries=queries), False)
    posted(recording)
    assert run(fusion(index, llm(), num_queries=queries), False) == plain
    assert posted(recording) == [SUBMIT]


def test_several_retrievers(index: VectorStoreIndex, recording: Recording) -> None:
    """Each retriever of the server has its searches in the graph."""
    plain = run(two(index, llm(ahead=False)), False)
    posted(recording)
    assert run(two(index, llm()), False) == plain
    assert len(recording.bodies(SUBMIT)[0]["steps"]) == 4


def two(index: VectorStoreIndex, model: Any, **how: Any) -> QueryFusionRetriever:
    """Two retrievers of unequal weights."""
    made = fusion(index, model, **how)
    made._retrievers.append(index.as_retriever(similarity_top_k=1))
    made._retriever_weights = [0.25, 0.75]
    return made


def advanced(
    index: VectorStoreIndex,
    model: Any,
    make: Any = fusion,
    response_mode: str = "refine",
    **how: Any,
) -> RetrieverQueryEngine:
    """Query expansion, searches, fusion, rerank and an answer."""
    synthesis: Any = {"streaming": how.pop("streaming", False), "response_mode": response_mode}
    synthesizer = get_response_synthesizer(llm=model, **synthesis)
    best = how.pop("best", None) or [WeftlineRerank(top_n=2)]
    return RetrieverQueryEngine(make(index, model, **how), synthesizer, node_postprocessors=best)


def answered(engine: RetrieverQueryEngine, is_async: bool = False) -> tuple[Any, ...]:
    """The answer, and the sources with their scores."""
    made: Any = asyncio.run(engine.aquery("red whale")) if is_async else engine.query("red whale")
    text = "".join(made.response_gen) if hasattr(made, "response_gen") else str(made)
    return text, [(one.node_id, one.score) for one in made.source_nodes]


@ASYNC
@pytest.mark.parametrize("response_mode", ["refine", "compact", "tree_summarize", "accumulate"])
def test_advanced_rag(
    index: VectorStoreIndex, recording: Recording, response_mode: str, is_async: bool
) -> None:
    """The same answer and sources. All is one request."""
    plain = answered(advanced(index, llm(ahead=False), response_mode=response_mode), is_async)
    count = len(posted(recording))
    assert answered(advanced(index, llm(), response_mode=response_mode), is_async) == plain
    [body] = recording.bodies(SUBMIT)
    assert posted(recording) == [SUBMIT] and count > 8
    assert [step["kind"] for step in body["steps"]] == ["embed", "search", "merge", "rerank"]
    calls = {"refine": 3, "accumulate": 3}.get(response_mode, 2)
    assert len(body["calls"]) == calls


@pytest.mark.parametrize(
    "mode", ["reciprocal_rerank", "simple", "relative_score", "dist_based_score"]
)
@pytest.mark.parametrize("make", [fusion, two])
def test_each_fusion(index: VectorStoreIndex, recording: Recording, mode: str, make: Any) -> None:
    """The server fuses as LlamaIndex does, so the reranking reads the same texts in their order."""
    how = {"mode": mode, "similarity_top_k": 2}
    plain = answered(advanced(index, llm(ahead=False), make, **how))
    posted(recording)
    assert answered(advanced(index, llm(), make, **how)) == plain
    assert posted(recording) == [SUBMIT]


def test_a_stream(index: VectorStoreIndex, recording: Recording) -> None:
    plain = answered(advanced(index, llm(ahead=False), streaming=True))
    posted(recording)
    assert answered(advanced(index, llm(), streaming=True)) == plain
    assert posted(recording) == [SUBMIT]


def test_fewer_nodes_than_were_asked_for(index: VectorStoreIndex, recording: Recording) -> None:
    """The calls on the others never run, and the answer is that of the last node."""
    best = [WeftlineRerank(top_n=9)]
    plain = answered(advanced(index, llm(ahead=False), best=best, similarity_top_k=9))
    posted(recording)
    assert answered(advanced(index, llm(), best=best, similarity_top_k=9)) == plain
    assert len(plain[1]) == 3 and posted(recording) == [SUBMIT]


class Backwards(WeftlineRerank):
    """A reranker of the user's, which turns the order around."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return super()._postprocess_nodes(nodes, query_bundle)[::-1]


class Stripped(WeftlineRerank):
    """A reranker of the user's, which ranks other texts."""

    def _asked(self, nodes: Any, query: Any) -> Any:
        return self.asked(query.query_str, [one.node.get_content() for one in nodes])


@pytest.mark.parametrize(
    ("best", "requests"),
    [
        (Backwards, [SUBMIT, SUBMIT]),  # the answer on nodes in another order
        (Stripped, [SUBMIT, SUBMIT]),  # the reranking
    ],
)
def test_a_wrong_guess_costs_a_request(
    index: VectorStoreIndex, recording: Recording, best: Any, requests: list[str]
) -> None:
    """A result goes only to a request that is equal to what was sent."""
    plain = answered(advanced(index, llm(ahead=False), best=[best(top_n=2)]))
    posted(recording)
    assert answered(advanced(index, llm(), best=[best(top_n=2)])) == plain
    assert posted(recording) == requests


def test_other_postprocessors(index: VectorStoreIndex, recording: Recording) -> None:
    """Behind one of them the answer follows. Before one of them the reranking is sent ahead."""
    cut = SimilarityPostprocessor(similarity_cutoff=0.001)
    for best, count in ([WeftlineRerank(top_n=2), cut], 2), ([cut, WeftlineRerank(top_n=2)], 3):
        plain = answered(advanced(index, llm(ahead=False), best=best))
        posted(recording)
        assert answered(advanced(index, llm(), best=best)) == plain
        assert posted(recording) == [SUBMIT] * count


def test_a_retriever_of_the_client(index: VectorStoreIndex, recording: Recording) -> None:
    """What it finds is known only in the run, so the fusion and what follows are LlamaIndex's."""

    def make(index: VectorStoreIndex, model: Any) -> QueryFusionRetriever:
        made = fusion(index, model)
        made._retrievers.append(Fixed())
        made._retriever_weights = [0.5, 0.5]
        return made

    plain = answered(advanced(index, llm(ahead=False), make))
    posted(recording)
    assert answered(advanced(index, llm(), make)) == plain
    assert posted(recording) == [SUBMIT, SUBMIT, SUBMIT], "searches, rerank, refine"


class Fixed(BaseRetriever):
    """Finds the same node for every query."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="a red crab", id_="crab"), score=0.9)]


class Mine(QueryFusionRetriever):
    """A retriever of the user's, of which only the searches are known."""


def test_a_subclass_goes_one_by_one(index: VectorStoreIndex, recording: Recording) -> None:
    made = Mine([index.as_retriever()], llm=llm(), use_async=False)
    made.retrieve("red whale")
    assert posted(recording).count(CHAT) == 1
