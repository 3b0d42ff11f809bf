"""The engines of random graphs, and what their steps give one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from weftline.contract.steps import Embed, Ingest, Merge, Rerank, Search, Source, Step
from weftline_engine import api
from weftline_engine.services.retrieval.core import Item
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.lowering.kinds import KINDS
from weftline_server.prompt.render import value_text

TENANT = "t"
DOCUMENTS = ["a", "b b", "a c", "c b a"]


def joined(values: Sequence[Any]) -> str:
    """What a function of a random graph makes of its arguments."""
    return "<" + "|".join(map(value_text, values)) + ">"


class Glue:
    """The function `glue`, in this process."""

    pure: ClassVar[frozenset[str]] = frozenset()

    def describe(self) -> api.Description:
        return api.Description(model="glue", kinds=("function",), capabilities=(), max_running=64)

    def items(self, op: api.Op) -> Sequence[Item]:
        return [Item(op)]

    def fed(self, op: api.Op, values: Sequence[Any]) -> Sequence[Item]:
        raise AssertionError("a function takes its arguments at once")

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        return [joined(list(op.inputs["arguments"].values())) for op in payloads]

    def value(self, kind: str, result: Any) -> object:
        return result

    def finish(self, op: api.Op, results: Sequence[Any]) -> object:
        return results[0]


class Retrieval:
    """An embedder and two stores: `docs`, which is full, and `kept`, which the graph fills."""

    def __init__(self) -> None:
        self.words = WordBackend("words")
        self.docs = StoreBackend("docs", MemoryTable())
        self.table = MemoryTable()
        embedded = self.run(Embed(in_=Source(value="x")), {"in": DOCUMENTS})
        self.run(Ingest(in_=Source(value="x"), store="docs"), {"in": embedded})

    def engines(self, without: frozenset[str]) -> Mapping[str, Callable[[], api.Engine]]:
        kept = 0 if "dedupe" in without else None
        return {
            "words": partial(LocalItems, self.words, most_items=2, kept=kept),
            "docs": partial(LocalItems, self.docs),
            "kept": partial(LocalItems, StoreBackend("kept", self.table)),
            "glue": partial(LocalItems, Glue()),
        }

    def texts(self) -> set[str]:
        """What the graph has stored."""
        found = self.table.fetch(TENANT, self.table.matching(TENANT, {}))
        return {document.text for document in found}

    def run(self, step: Step, given: Mapping[str, Any]) -> Any:
        """The value of one step. Raises InvalidRequest for inputs that do not fit."""
        inputs = KINDS.of(step).inputs(step, given)
        if isinstance(step, Merge):
            return KINDS.of(step).result(step, given, None)
        backend = self.words if isinstance(step, Embed | Rerank) else self.docs
        tenant = {"tenant": TENANT} if isinstance(step, Search | Ingest) else {}
        op = api.Op(id="op", kind=step.kind, context="op", inputs={**inputs, **tenant})
        results = backend.compute(step.kind, [item.payload for item in backend.items(op)])
        return KINDS.of(step).result(step, given, backend.finish(op, results))
