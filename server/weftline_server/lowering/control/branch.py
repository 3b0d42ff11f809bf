"""A branch: a predicate over data chooses one of several variables; the other sides are skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from weftline.contract.steps import Branch
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing, Growth
from weftline_server.graph.primitive import Read, Task, Traits, Where
from weftline_server.lowering.control.base import (
    ControlBody,
    Question,
    Variables,
    primitive,
    raw,
    reads_of,
    rewired,
    task_of,
    waits_for,
)
from weftline_server.lowering.step import Field, Kinds, Rename, Says, StepKind


class BranchKind(StepKind[Branch]):
    """Kind `branch` decides, and the value of the side stands behind kind `take`."""

    traits = Traits(where=Where.SERVER, chooses=True)
    says: ClassVar[Says] = {
        "cases": Field(
            "The sides, of which the first whose condition holds is taken.",
            [{"when": {"op": "contains", "value": "yes"}, "take": "long"}],
        ),
        "default": Field("The side that is taken if no condition holds.", "short"),
        "on": Field("The value that the conditions look at.", {"var": "question"}),
    }

    def later(self, step: Branch, kinds: Kinds) -> tuple[str, ...]:
        return step.sides

    def predicates(self, step: Branch) -> Iterator[Mapping[str, Any]]:
        return (case.when for case in step.cases)

    def renamed(self, step: Branch, rename: Rename, kinds: Kinds) -> Branch:
        step = super().renamed(step, rename, kinds)
        cases = tuple(replace(one, take=rename(one.take)) for one in step.cases)
        return replace(step, cases=cases, default=rename(step.default))

    def lower(self, step: Branch, resource: str, id: str, batch: int | None, kinds: Kinds) -> Task:
        out = step.out or f"{id}.out"
        reads = reads_of(waits_for(step), ())
        body = DecideBody(step, f"{id}/1")
        primitives = (
            primitive(id, 0, "branch", f"{id}.taken", body, reads, self.traits),
            primitive(id, 1, "take", out, TakeBody(), reads_of((), step.sides, step.sides)),
        )
        return task_of(step, id, primitives, step.sides)


@dataclass(frozen=True, slots=True)
class DecideBody(ControlBody, Growing):
    """Decides which side is taken. The value of this primitive is the side's variable."""

    step: Branch
    taker: str

    def asks(self, variables: Variables) -> Question:
        cases = tuple([case.when for case in self.step.cases])
        return Question(self.step.on.transforms, raw(self.step.on, variables), cases)

    def value(self, variables: Variables, answer: Any = None) -> object:
        return self.step.default if answer is None else self.step.cases[answer].take

    def growth(self, graph: Graph, value: Any) -> Growth:
        taker = rewired(graph.primitives[self.taker], (Read(value),), TakeBody(value))
        others = tuple(side for side in self.step.sides if side != value)
        return Growth(rewritten={taker.id: taker}, released=others)


@dataclass(frozen=True, slots=True)
class TakeBody(ControlBody):
    """The value of the side that is taken; `side` is empty before the decision."""

    side: str = ""

    def value(self, variables: Variables, answer: Any = None) -> object:
        return variables[self.side].value
