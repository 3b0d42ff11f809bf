"""A loop: its body runs round by round, until a predicate holds or the most rounds have run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from weftline.contract import transforms
from weftline.contract.steps import Loop
from weftline.contract.vectors import plain
from weftline_engine.api import FinishReason
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing, Growth
from weftline_server.graph.primitive import Primitive, Read, Task
from weftline_server.lowering.control.base import (
    ENDS,
    GROWS,
    ControlBody,
    Question,
    Variables,
    primitive,
    reads_of,
    rewired,
    task_of,
    waits_for,
)
from weftline_server.lowering.control.body import (
    Instance,
    check_writes,
    generates,
    instance,
    read_outside,
    renamed_body,
    tried,
)
from weftline_server.lowering.step import Field, Kinds, Rename, Says, StepKind


class LoopKind(StepKind[Loop]):
    """Kind `loop` begins the first round, and the last carry stands behind kind `last`.

    Each round ends with a primitive `until`, which ends the loop or adds the next round.
    """

    traits = GROWS
    says: ClassVar[Says] = {
        "body": Field(
            "What a turn does.",
            {"calls": [{"name": "short", "prompt": "Shorten {{input:item}}: {{output:line}}"}]},
        ),
        "carry": Field("The values of the first turn, by name.", {"draft": {"var": "question"}}),
        "most": Field("The most turns.", 3),
        "next": Field(
            "The values of the next turn: names of carry, and variables of the body.",
            {"draft": "better"},
        ),
        "result": Field("The variable of the last turn that becomes the loop's value.", "better"),
        "until": Field(
            "The condition that ends the loop.",
            {"on": "verdict", "when": {"op": "contains", "value": "good"}},
        ),
    }

    def later(self, step: Loop, kinds: Kinds) -> tuple[str, ...]:
        inside = read_outside(step.body, frozenset(step.carry), kinds)
        return (*step.carry.values(), *inside)

    def transforms(self, step: Loop) -> Iterator[Sequence[Mapping[str, Any]]]:
        return iter([step.until.transforms])

    def predicates(self, step: Loop) -> Iterator[Mapping[str, Any]]:
        return iter([step.until.when])

    def renamed(self, step: Loop, rename: Rename, kinds: Kinds) -> Loop:
        carry = {name: rename(first) for name, first in step.carry.items()}
        body = renamed_body(step.body, frozenset(step.carry), rename, kinds)
        return replace(super().renamed(step, rename, kinds), carry=carry, body=body)

    def lower(self, step: Loop, resource: str, id: str, batch: int | None, kinds: Kinds) -> Task:
        name = step.name or "loop"
        for spec in step.until.transforms:
            transforms.read(spec)
        check_writes(step.body, name, step.next.values(), "next", given=step.carry)
        check_writes(step.body, name, [step.until.on], "on", given=step.carry)
        last = Instance(f"{id}.{step.most - 1}", id, name, dict(step.carry))
        made = tried(step.body, last, kinds, (step.until.on, *step.next.values()))
        later, waits = dict.fromkeys(self.later(step, kinds)), waits_for(step)
        sides = tuple(one for one in later if one in made.sides and one not in waits)
        rounds = LoopRounds(step, id, made.watched, sides, kinds)
        reads = reads_of(waits, [one for one in later if one not in sides])
        begin = primitive(id, 0, "loop", f"{id}.rounds", LoopBegin(rounds), reads, self.traits)
        primitives = (
            replace(begin, work=1 + made.work, output=made.output),  # one round is certain
            primitive(id, 1, "last", step.out or f"{id}.out", LastBody(), rounds.side_reads),
        )
        return task_of(step, id, primitives, later)


@dataclass(frozen=True, slots=True)
class LoopRounds:
    """Makes the rounds of a loop. `watched` are the variables that tell that a round has ended.
    Only sides of branches may read `sides`, in any round.
    """

    step: Loop
    id: str
    watched: tuple[str, ...]
    sides: tuple[str, ...]
    kinds: Kinds

    @property
    def side_reads(self) -> tuple[Read, ...]:
        """Edges into the loop's end, which is there as long as another round may come."""
        return reads_of((), self.sides, self.sides)

    def growth(self, graph: Graph, number: int) -> Growth:
        """The tasks of a round; the loop's value waits for the round's end."""
        prefix, step = f"{self.id}.{number}", self.step
        names = {
            name: f"{self.id}.{number - 1}.{step.next[name]}" if number else first
            for name, first in step.carry.items()
        }
        label = f"{step.name or 'loop'}[{number}]"
        tasks = instance(step.body, Instance(prefix, self.id, label, names), self.kinds)
        until = f"{prefix}.until"
        reads = tuple(Read(f"{prefix}.{variable}") for variable in self.watched)
        body = UntilBody(self, number)
        end = Task(
            id=until,
            name=f"{label}.until",
            resource="",
            primitives=(primitive(until, 0, "until", f"{until}.holds", body, reads, ENDS),),
            reads=tuple(one.variable for one in reads),
            owner=self.id,
        )
        ahead = (Read(f"{until}.holds"), *self.side_reads)
        last = rewired(self._last(graph), ahead, LastBody())
        return Growth(tasks=(*tasks, end), rewritten={last.id: last})

    def end(self, graph: Graph, number: int, *, limit: bool) -> Growth:
        """The loop's value is the carry of this round."""
        carried = f"{self.id}.{number}.{self.step.next[self.step.carried]}"
        last = rewired(self._last(graph), (Read(carried),), LastBody(carried, limit))
        return Growth(rewritten={last.id: last}, released=self.sides)

    def _last(self, graph: Graph) -> Primitive:
        return graph.primitives[f"{self.id}/1"]


@dataclass(frozen=True, slots=True)
class LoopBegin(ControlBody, Growing):
    """The begin of a loop. The value of this primitive is the most rounds that the loop may
    have."""

    rounds: LoopRounds

    @property
    def changes(self) -> bool:
        return not self.rounds.kinds.is_free(self.rounds.step.body)

    @property
    def generates(self) -> bool:
        return generates(self.rounds.step.body, self.rounds.kinds)

    def value(self, variables: Variables, answer: Any = None) -> object:
        return self.rounds.step.most

    def growth(self, graph: Graph, value: Any) -> Growth:
        return self.rounds.growth(graph, 0)


@dataclass(frozen=True, slots=True)
class UntilBody(ControlBody, Growing):
    """Whether a loop ends with this round."""

    rounds: LoopRounds
    number: int

    def asks(self, variables: Variables) -> Question:
        until = self.rounds.step.until
        found = plain(variables[f"{self.rounds.id}.{self.number}.{until.on}"].value)
        return Question(until.transforms, found, (until.when,))

    def value(self, variables: Variables, answer: Any = None) -> object:
        return answer is not None

    def growth(self, graph: Graph, value: Any) -> Growth:
        if value or self.number + 1 == self.rounds.step.most:
            return self.rounds.end(graph, self.number, limit=not value)
        return self.rounds.growth(graph, self.number + 1)


@dataclass(frozen=True, slots=True)
class LastBody(ControlBody):
    """The last value of a loop's carry; `limit` says that the loop ran its most rounds."""

    carried: str = ""
    limit: bool = False

    @property
    def reason(self) -> FinishReason | None:
        """`limit` after the most rounds."""
        return FinishReason.LIMIT if self.limit else None

    def value(self, variables: Variables, answer: Any = None) -> object:
        return variables[self.carried].value
