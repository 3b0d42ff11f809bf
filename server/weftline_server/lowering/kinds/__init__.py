"""The registry of the kinds of steps, and of calls: each kind has a file of its own."""

from __future__ import annotations

from typing import Any

from weftline.contract.steps import StepBase
from weftline_server.graph.primitive import Primitive
from weftline_server.lowering.control.branch import BranchKind
from weftline_server.lowering.control.each import EachKind
from weftline_server.lowering.control.loop import LoopKind
from weftline_server.lowering.item_kinds import ItemKind
from weftline_server.lowering.kinds.agent import AgentKind
from weftline_server.lowering.kinds.client import ClientKind
from weftline_server.lowering.kinds.embed import EmbedKind
from weftline_server.lowering.kinds.function import FunctionKind
from weftline_server.lowering.kinds.mean import MeanKind
from weftline_server.lowering.kinds.merge import MergeKind
from weftline_server.lowering.kinds.prompt import lower_call
from weftline_server.lowering.kinds.rerank import RerankKind
from weftline_server.lowering.kinds.search import SearchKind
from weftline_server.lowering.kinds.store import DeleteKind, FetchKind, IngestKind
from weftline_server.lowering.kinds.text import TextKind
from weftline_server.lowering.step import Kinds, StepBody, kind_name

KINDS = Kinds(
    {
        "agent": AgentKind(),
        "branch": BranchKind(),
        "client": ClientKind(),
        "delete": DeleteKind(),
        "each": EachKind(),
        "embed": EmbedKind(),
        "fetch": FetchKind(),
        "function": FunctionKind(),
        "ingest": IngestKind(),
        "loop": LoopKind(),
        "mean": MeanKind(),
        "merge": MergeKind(),
        "rerank": RerankKind(),
        "search": SearchKind(),
        "text": TextKind(),
    },
    lower_call,
)


def wait_of(primitive: Primitive) -> float:
    """The seconds that the server lets pass before it computes a primitive without an engine."""
    body = primitive.body
    return KINDS.of(body.step).wait_s(body.step) if isinstance(body, StepBody) else 0


def item_kind(step: StepBase) -> ItemKind[Any]:
    """The kind of a step that takes items."""
    kind = KINDS.of(step)
    assert isinstance(kind, ItemKind), f"{kind_name(step)} takes no items"
    return kind
