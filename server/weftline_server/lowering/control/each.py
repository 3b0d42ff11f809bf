"""An each: its body runs for all items of a list at the same time; lists gather the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weftline.errors import InvalidRequest, TransformFailed
from weftline.steps import Each
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growth, TakesItems
from weftline_server.graph.primitive import Flow, Primitive, Read, Task
from weftline_server.lowering.control.base import (
    ControlBody,
    Variables,
    primitive,
    read,
    reads_of,
    rewired,
    task_of,
    waits_for,
)
from weftline_server.lowering.control.body import (
    Instance,
    LowerStep,
    check_writes,
    first_task,
    instance,
    read_outside,
    size_of,
    tried,
)
from weftline_server.session.variable import VariableState

MAX_TASKS = 100_000  # of one list, as many as a session's budget has calls


def lower_each(step: Each, id: str, lower: LowerStep) -> Task:
    """The task of an each: `each` has the list, and a `gather` for each collected variable."""
    name = step.name or "each"
    check_writes(step.body, name, step.collect, "collect", given={step.item})
    last = Instance(f"{id}.{step.max_items - 1}", id, name, {step.item: f"{id}.{step.item}"})
    watched = dict.fromkeys((*step.collect, *tried(step.body, last, lower)))
    outside = read_outside(step.body, frozenset({step.item}))
    reads = reads_of(waits_for(step), outside)
    primitives = [
        primitive(id, 0, "each", f"{id}.items", EachBody(step, id, tuple(watched), lower), reads)
    ]
    for number, (own, out) in enumerate(step.collect.items(), 1):
        primitives.append(primitive(id, number, "gather", out, GatherBody(step, own, ())))
    return task_of(step, id, primitives, outside)


@dataclass(frozen=True, slots=True)
class EachBody(ControlBody, TakesItems):
    """The list of an each. `watched` are the variables of an item that tell that it has ended."""

    step: Each
    id: str
    watched: tuple[str, ...]
    lower: LowerStep

    @property
    def is_slow(self) -> bool:
        """Whether it runs transforms."""
        return bool(self.step.over.transforms)

    def value(self, variables: Variables) -> object:
        items = read(self.step.over, variables)
        if not isinstance(items, list):
            raise TransformFailed(f"each takes a list, and the value is a {type(items).__name__}")
        if len(items) > self.step.max_items:
            raise InvalidRequest(
                f"the list has {len(items):,} items, and max_items is {self.step.max_items:,}",
                param="max_items",
            )
        if any(item is None for item in items):
            raise TransformFailed("an item of the list is null, which no variable can be")
        if len(items) * size_of(self.step.body) > MAX_TASKS:
            raise InvalidRequest(
                f"{len(items):,} items make more than {MAX_TASKS:,} calls and steps: use fewer",
                param="max_items",
            )
        return items

    def growth_of(self, graph: Graph, offset: int, items: Sequence[Any]) -> Growth:
        if offset + len(items) > self.step.max_items:
            raise InvalidRequest(
                f"the list has more items than max_items, {self.step.max_items:,}",
                param="max_items",
            )
        name = self.step.name or "each"
        tasks: list[Task] = []
        values: dict[str, Any] = {}
        for number, item in enumerate(items, offset):
            prefix = f"{self.id}.{number}"
            own = f"{prefix}.{self.step.item}"
            made = Instance(prefix, self.id, f"{name}[{number}]", {self.step.item: own})
            tasks += instance(self.step.body, made, self.lower)
            values[own] = item
        gathers = self._gathers(graph, offset + len(items))
        return Growth(tasks=tuple(tasks), values=values, rewritten=gathers)

    def growth(self, graph: Graph, value: Any) -> Growth:
        known = 0
        while known < len(value) and first_task(f"{self.id}.{known}", graph) is not None:
            known += 1
        return self.growth_of(graph, known, value[known:])

    def _gathers(self, graph: Graph, count: int) -> Mapping[str, Primitive]:
        """The gathers of the first `count` items. They run when the list has ended."""
        items = tuple(tuple(self._named(number)) for number in range(count))
        flow = Flow.WHOLE if self.step.on_error == "fail" else Flow.OUTCOME
        reads = tuple(Read(variable, flow) for item in items for variable in item)
        found = {}
        for number, own in enumerate(self.step.collect, 1):
            id, body = f"{self.id}/{number}", GatherBody(self.step, own, items)
            found[id] = rewired(graph.primitives[id], reads, body)
        return found

    def _named(self, number: int) -> Iterator[str]:
        return (f"{self.id}.{number}.{variable}" for variable in self.watched)


@dataclass(frozen=True, slots=True)
class GatherBody(ControlBody):
    """The values of one variable of the body, in the order of the items.

    `items` are the watched variables of each. An item has failed if one of them has.
    """

    step: Each
    own: str
    items: tuple[tuple[str, ...], ...]

    def value(self, variables: Variables) -> object:
        at = list(self.step.collect).index(self.own)
        found = []
        for item in self.items:
            if all(variables[one].state is VariableState.READY for one in item):
                found.append(variables[item[at]].value)
            elif self.step.on_error == "value":
                found.append(self.step.otherwise)
        return found
