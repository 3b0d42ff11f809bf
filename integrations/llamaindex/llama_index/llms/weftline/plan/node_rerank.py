"""The reranking that an engine asks for when its nodes are found.

A postprocessor ranks what LlamaIndex embeds of each node. The server makes the same texts of the
hits. A reranking that was sent ahead is given to a request for exactly these texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from llama_index.llms.weftline.plan.answer_symbols import Spec

from weftline.contract import transforms
from weftline.contract.steps import Rerank, Source
from weftline.errors import InvalidRequest, WeftlineError
from weftline.kit import ReadValue, Result, Server
from weftline.kit.retrieval_requests import AnswerSteps
from weftline.kit.server_fields import ServerFields
from weftline.watching import Value

ITEMS: Spec = {"op": "node_items"}


def rerank_of(postprocessors: Sequence[Any], server: Server) -> Any:
    """The reranker at `server` that an engine asks first. None if there is none."""
    first = postprocessors[0] if postprocessors else None
    if not isinstance(first, ServerFields) or not hasattr(first, "top_n"):
        return None
    if first.server.server.place != server.place:
        return None
    try:
        rank_step(first, Source(value=""), "hits", "ranked")
    except InvalidRequest:
        return None  # the reranker will raise the same
    return first


def rank_step(rerank: Any, query: Source, found: str, out: str) -> Rerank:
    """The step that ranks the nodes of the variable `found`. Raises InvalidRequest."""
    [step] = rerank.asked("", [""]).steps
    assert isinstance(step, Rerank)
    nodes = Source(var=found, transforms=(dict(ITEMS),))
    return replace(step, in_=nodes, query=query, out=out)


class RankedNodes:
    """The result of a reranking of the nodes `found`. It is given to one request."""

    def __init__(self, rerank: Any, query: str, found: ReadValue, ranked: Result) -> None:
        self._rerank, self._query, self._found = rerank, query, found
        self._ranked: Result | None = ranked
        self._lock = Lock()

    def claim(self, server: Server, asked: AnswerSteps) -> Result | None:
        """The result for a request equal to the reranking, if it is not claimed yet."""
        found = self._found.peek()
        if not isinstance(found, Value) or not isinstance(asked.steps[-1], Rerank):
            return None
        if server.place != self._rerank.server.server.place:
            return None
        try:
            texts = [item["text"] for item in transforms.run((ITEMS,), found.value)]
        except WeftlineError:
            return None
        if asked != self._rerank.asked(self._query, texts):
            return None
        with self._lock:
            ranked, self._ranked = self._ranked, None
        return ranked
