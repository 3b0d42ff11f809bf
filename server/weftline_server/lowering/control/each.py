"""An each: its body runs for all items of a list at the same time; lists gather the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest, TransformFailed
from weftline.contract.steps import Each
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growth, TakesItems
from weftline_server.graph.primitive import Flow, ItemFlow, Primitive, Read, Task
from weftline_server.lowering.control.base import (
    ENDS,
    GROWS,
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
from weftline_server.lowering.control.body import (
    Instance,
    check_writes,
    generates,
    instance,
    read_outside,
    renamed_body,
    size_of,
    tried,
)
from weftline_server.lowering.step import Field, Kinds, Rename, Says, StepKind
from weftline_server.session.variable import VariableState

# Items of a list that does not exist yet, for the work that an application has left. An application
# whose model still writes its list seemed shorter than one with three of four items to go.
GUESSED_ITEMS = 4
MAX_TASKS = 100_000  # of one list, as many as a session's budget has calls


class EachKind(StepKind[Each]):
    """Kind `each` has the list; behind it a kind `gather` has each of the collected lists."""

    traits = GROWS
    says: ClassVar[Says] = {
        "body": Field(
            "What is done with each item.",
            {"calls": [{"name": "short", "prompt": "Shorten {{input:item}}: {{output:line}}"}]},
        ),
        "collect": Field(
            "Variables of the body, and the lists that collect them.", {"line": "lines"}
        ),
        "item": Field("The name by which the body reads the item.", "item"),
        "max_items": Field("The most items; a longer list fails.", 32),
        "on_error": Field("What an item that fails does: fail, skip, or value.", "fail"),
        "otherwise": Field("The value of an item that fails, with on_error value.", ""),
        "over": Field("The list.", {"var": "question"}),
    }

    def later(self, step: Each, kinds: Kinds) -> tuple[str, ...]:
        return read_outside(step.body, frozenset({step.item}), kinds)

    def renamed(self, step: Each, rename: Rename, kinds: Kinds) -> Each:
        collect = {name: rename(out) for name, out in step.collect.items()}
        body = renamed_body(step.body, frozenset({step.item}), rename, kinds)
        return replace(super().renamed(step, rename, kinds), collect=collect, body=body)

    def lower(self, step: Each, resource: str, id: str, batch: int | None, kinds: Kinds) -> Task:
        name = step.name or "each"
        check_writes(step.body, name, step.collect, "collect", given={step.item})
        last = Instance(f"{id}.{step.max_items - 1}", id, name, {step.item: f"{id}.{step.item}"})
        made = tried(step.body, last, kinds, step.collect)
        outside = self.later(step, kinds)
        reads = reads_of(waits_for(step), outside, made.sides)
        body = EachBody(step, id, made.watched, kinds)
        first = primitive(id, 0, "each", f"{id}.items", body, reads, self.traits)
        items = None if self.changes(step, kinds) else _item_flow(step)
        count = _expected(step)
        work, output = 1 + made.work * count, made.output * count
        primitives = [replace(first, items=items, work=work, output=output)]
        for number, (own, out) in enumerate(step.collect.items(), 1):
            gather = primitive(id, number, "gather", out, GatherBody(step, own, ()), traits=ENDS)
            primitives.append(replace(gather, items=ItemFlow(streams=True, ordered=True)))
        return task_of(step, id, primitives, outside)


def _expected(step: Each) -> int:
    """How many items the list may have."""
    known = step.over.value if step.over.var is None else None
    items = len(known) if isinstance(known, list) else GUESSED_ITEMS
    return min(items, step.max_items)


def _item_flow(step: Each) -> ItemFlow | None:
    """How items come in. An item that is not in the list in the end may only have cost time."""
    source = step.over
    if source.var is None or source.var in step.after:
        return None
    return ItemFlow(takes=source.var, through=source.transforms)


@dataclass(frozen=True, slots=True)
class EachBody(ControlBody, TakesItems):
    """The list of an each. `watched` are the variables of an item that tell that it has ended.

    `taken` are the items whose tasks the graph has. `thrown` counts the times that such items were
    not those of the list: the tasks of thrown items keep their ids, so the next tasks get other
    ids.
    """

    step: Each
    id: str
    watched: tuple[str, ...]
    kinds: Kinds
    taken: tuple[Any, ...] = ()
    prefixes: tuple[str, ...] = ()
    thrown: int = 0

    def asks(self, variables: Variables) -> Question:
        return Question(self.step.over.transforms, raw(self.step.over, variables))

    @property
    def changes(self) -> bool:
        return not self.kinds.is_free(self.step.body)

    @property
    def generates(self) -> bool:
        return generates(self.step.body, self.kinds)

    def value(self, variables: Variables, answer: Any = None) -> object:
        items = answer
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
        assert offset == len(self.taken), f"{self.id} has {len(self.taken)} items, not {offset}"
        if offset + len(items) > self.step.max_items:
            raise InvalidRequest(
                f"the list has more items than max_items, {self.step.max_items:,}",
                param="max_items",
            )
        body, tasks, values = self._taking(items)
        first = graph.primitives[f"{self.id}/0"]
        gathers = body._gathers(graph, offset)
        return Growth(tasks, values, {first.id: rewired(first, first.reads, body), **gathers})

    def growth(self, graph: Graph, value: Any) -> Growth:
        """The tasks of the rest of the list, without those of items that are not in it."""
        same = 0
        while same < min(len(self.taken), len(value)) and self.taken[same] == value[same]:
            same += 1
        thrown = [f"{prefix}.{own}" for prefix in self.prefixes[same:] for own in self.watched]
        kept = self
        if thrown:
            kept = replace(
                self,
                taken=self.taken[:same],
                prefixes=self.prefixes[:same],
                thrown=self.thrown + 1,
            )
        body, tasks, values = kept._taking(value[same:])
        reads = graph.primitives[f"{self.id}/0"].reads
        released = (*thrown, *(read.variable for read in reads if read.flow is Flow.SIDE))
        return Growth(tasks, values, body._gathers(graph, 0 if thrown else same), released)

    def _taking(self, items: Sequence[Any]) -> tuple[EachBody, tuple[Task, ...], Mapping[str, Any]]:
        """This body with more items, and their tasks and values."""
        name, mark = self.step.name or "each", f"x{self.thrown}" if self.thrown else ""
        tasks: list[Task] = []
        values: dict[str, Any] = {}
        prefixes: list[str] = []
        for number, item in enumerate(items, len(self.taken)):
            prefix = f"{self.id}.{number}{mark}"
            own = f"{prefix}.{self.step.item}"
            made = Instance(prefix, self.id, f"{name}[{number}]", {self.step.item: own})
            tasks += instance(self.step.body, made, self.kinds)
            values[own] = item
            prefixes.append(prefix)
        body = replace(self, taken=(*self.taken, *items), prefixes=(*self.prefixes, *prefixes))
        return body, tuple(tasks), values

    def _gathers(self, graph: Graph, known: int) -> Mapping[str, Primitive]:
        """The gathers of all items. The gathers in the graph have the first `known` items, and run
        when the list has ended.
        """
        items = tuple(
            tuple(f"{prefix}.{variable}" for variable in self.watched)
            for prefix in self.prefixes[known:]
        )
        flow = Flow.WHOLE if self.step.on_error == "fail" else Flow.OUTCOME
        reads = tuple(Read(variable, flow) for item in items for variable in item)
        found = {}
        for number, own in enumerate(self.step.collect, 1):
            old = graph.primitives[f"{self.id}/{number}"]
            assert isinstance(old.body, GatherBody), f"{old.id} gathers nothing"
            # The items that the old gather has are taken over, because a long list comes in many
            # pieces.
            body = GatherBody(self.step, own, (*old.body.items[:known], *items))
            found[old.id] = rewired(old, (*old.reads[: known * len(self.watched)], *reads), body)
        return found


@dataclass(frozen=True, slots=True)
class GatherBody(ControlBody):
    """The values of one variable of the body, in the order of the items.

    `items` holds the watched variables of each item. An item has failed if one of its variables
    has.
    """

    step: Each
    own: str
    items: tuple[tuple[str, ...], ...]

    def value(self, variables: Variables, answer: Any = None) -> object:
        return self._results(variables, self.items)

    def so_far(self, variables: Variables) -> list[Any]:
        """The results of the first items, up to one that has not ended."""

        def has_ended(item: tuple[str, ...]) -> bool:
            return all(variables[one].settled for one in item)

        return self._results(variables, takewhile(has_ended, self.items))

    def sources(self, variables: Variables) -> list[str | None]:
        """The variable of each result; None for an item that has failed."""
        return list(self._sources(variables, self.items))

    def _sources(
        self, variables: Variables, items: Iterable[tuple[str, ...]]
    ) -> Iterator[str | None]:
        at = list(self.step.collect).index(self.own)
        for item in items:
            if all(variables[one].state is VariableState.READY for one in item):
                yield item[at]
            elif self.step.on_error == "value":
                yield None

    def _results(self, variables: Variables, items: Iterable[tuple[str, ...]]) -> list[Any]:
        return [
            self.step.otherwise if one is None else variables[one].value
            for one in self._sources(variables, items)
        ]
