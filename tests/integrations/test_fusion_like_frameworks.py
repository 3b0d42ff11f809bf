"""The step `merge` against the fusions of LlamaIndex and LangChain: equal documents and scores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores.utils import node_to_metadata_dict

from weftline.contract.steps import Merge, Source
from weftline.errors import TransformFailed
from weftline_server.lowering.kinds.merge import MergeKind

QUERIES, RETRIEVERS = 3, 2
# Five texts, of which two nodes may have the same one, in documents with and without metadata.
NODES = [
    TextNode(id_=str(at), text=f"text {at % 5}", metadata={"n": at % 5} if at % 2 else {})
    for at in range(12)
]
FOUND = st.lists(
    st.tuples(st.sampled_from(NODES), st.sampled_from([0.0, 0.1, 0.3, 0.7, 1 / 3, -0.2])),
    max_size=6,
    unique_by=lambda one: one[0].node_id,
).map(lambda found: sorted(found, key=lambda one: -one[1]))
LISTS = st.lists(FOUND, min_size=QUERIES * RETRIEVERS, max_size=QUERIES * RETRIEVERS)
WEIGHTS = st.sampled_from([[0.5, 0.5], [1.0, 0.0], [1 / 3, 2 / 3], [3, 4]])
MODES = {
    "reciprocal_rerank": "reciprocal",
    "relative_score": "relative",
    "dist_based_score": "distribution",
    "simple": "score",
}


def hits_of(found: list[tuple[TextNode, float]]) -> list[dict[str, Any]]:
    return [
        {
            "id": node.node_id,
            "text": node.text,
            "metadata": node_to_metadata_dict(node, remove_text=True),
            "score": score,
        }
        for node, score in found
    ]


def merged(step: Merge, *inputs: Any) -> Any:
    given = dict(zip(step.sources, inputs, strict=True))
    return MergeKind().result(step, given, None)


def inputs(count: int) -> dict[str, Any]:
    sources = [Source(var=f"hits{at}") for at in range(count)]
    return {"in_": sources[0], "beside": tuple(sources[1:])}


@pytest.mark.parametrize("mode", MODES)
@given(LISTS, WEIGHTS)
def test_llama_index(mode: str, lists: list[Any], weights: list[float]) -> None:
    """Of three queries to two retrievers, in the order in which LlamaIndex asks them. Scores are
    equal to the last bit. Nodes are the same by LlamaIndex's hash."""
    retriever = QueryFusionRetriever(
        [MockRetriever()] * RETRIEVERS,  # type: ignore[list-item]  # it is not asked
        llm=MockLLM(),
        mode=mode,  # type: ignore[arg-type]
        num_queries=QUERIES,
        retriever_weights=list(weights),
    )
    keys = [(f"query {q}", r) for q in range(QUERIES) for r in range(RETRIEVERS)]
    results = {
        key: [NodeWithScore(node=node, score=score) for node, score in found]
        for key, found in zip(keys, lists, strict=True)
    }
    if mode == "reciprocal_rerank":
        expected = retriever._reciprocal_rerank_fusion(results)
    elif mode == "simple":
        expected = retriever._simple_fusion(results)
    else:
        expected = retriever._relative_score_fusion(results, mode == "dist_based_score")
    weighs = mode in ("relative_score", "dist_based_score")
    step = Merge(
        **inputs(RETRIEVERS),
        by="node",
        rank=MODES[mode],  # type: ignore[arg-type]
        weights=tuple(retriever._retriever_weights) if weighs else (),
        share=QUERIES,
    )
    by_retriever = [[hits_of(one) for one in lists[at::RETRIEVERS]] for at in range(RETRIEVERS)]
    found = merged(step, *by_retriever)
    assert [(hit["text"], hit["score"]) for hit in found] == [
        (one.node.get_content(), one.score) for one in expected
    ]
    if mode != "reciprocal_rerank":  # which takes the last of several equal nodes
        assert [hit["id"] for hit in found] == [one.node.node_id for one in expected]


class MockRetriever:
    """Stands where a retriever does."""


@given(st.lists(FOUND, min_size=2, max_size=2), WEIGHTS, st.sampled_from([60, 1, 7]))
def test_langchain(lists: list[Any], weights: list[float], c: int) -> None:
    """EnsembleRetriever's documents in its order; it keeps the scores to itself."""
    ensemble = EnsembleRetriever.model_construct(retrievers=[], weights=weights, c=c, id_key=None)
    documents = [
        [Document(page_content=node.text, id=node.node_id) for node, _ in found] for found in lists
    ]
    step = Merge(
        **inputs(2), by="text", rank="reciprocal", weights=tuple(map(float, weights)), first=c + 1
    )
    found = merged(step, *map(hits_of, lists))
    expected = ensemble.weighted_reciprocal_rank(documents)
    assert [(hit["id"], hit["text"]) for hit in found] == [
        (one.id, one.page_content) for one in expected
    ]


def test_what_is_no_node() -> None:
    """A node of another class has another hash."""
    hit = {"text": "a", "metadata": {"_node_content": "{}", "_node_type": "ImageNode"}}
    with pytest.raises(TransformFailed, match="TextNode"):
        merged(Merge(in_=Source(var="hits"), by="node"), [hit])
