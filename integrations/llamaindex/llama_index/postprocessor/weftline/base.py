"""WeftlineRerank: a LlamaIndex node postprocessor in a weftline server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.llms.weftline.ahead.retrieval_answers import aask, ask

from weftline.kit import retrieval_requests
from weftline.kit.server_fields import ServerFields


class WeftlineRerank(BaseNodePostprocessor, ServerFields):
    """Keeps the `top_n` nodes that fit the query best, the best first.

    `model` names a reranker of the server. None means the first one. It may also be an embedder,
    which scores by the similarity of tokens.
    """

    model: str | None = Field(default=None)
    top_n: int = Field(default=3, gt=0)

    @classmethod
    def class_name(cls) -> str:
        return "WeftlineRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes:
            return []
        return _chosen(nodes, ask(self.server, self._asked(nodes, query_bundle)))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes:
            return []
        return _chosen(nodes, await aask(self.server, self._asked(nodes, query_bundle)))

    def _asked(
        self, nodes: Sequence[NodeWithScore], query: QueryBundle | None
    ) -> retrieval_requests.AnswerSteps:
        if query is None:
            raise ValueError("a WeftlineRerank needs the query: give query_str or query_bundle")
        texts = [one.node.get_content(metadata_mode=MetadataMode.EMBED) for one in nodes]
        return self.asked(query.query_str, texts)

    def asked(self, query: str, texts: Sequence[str]) -> retrieval_requests.AnswerSteps:
        """The request for the best of these texts."""
        return retrieval_requests.rerank(query, texts, self.top_n, self.model)


def _chosen(
    nodes: Sequence[NodeWithScore], ranked: Sequence[Mapping[str, Any]]
) -> list[NodeWithScore]:
    return [NodeWithScore(node=nodes[one["index"]].node, score=one["score"]) for one in ranked]
