"""Decides whether a primitive can run, from its inputs, its order and the failures among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weftline.contract.errors import WeftlineError
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import DISTANT, Flow, Primitive, Task
from weftline_server.session.events import Fill
from weftline_server.session.task import PrimitiveRun, RunState
from weftline_server.session.variable import SessionVariable, VariableState


def ready_reads(
    primitive: Primitive, variables: Mapping[str, SessionVariable], start: int = 0
) -> int:
    """Return how many leading reads are ready. The first `start` are known to be."""
    reads = primitive.reads
    for at in range(start, len(reads)):
        variable, flow = reads[at]
        state = variables[variable].state
        if state is VariableState.READY or flow in DISTANT:
            continue
        if flow is not Flow.OUTCOME or not variables[variable].settled:
            return at
    return len(reads)


def is_behind(primitive: Primitive, runs: Mapping[str, PrimitiveRun]) -> bool:
    """Whether the primitive still waits for another one that has to end first."""
    return any(runs[before].state is not RunState.DONE for before in primitive.after)


def continues(primitive: Primitive, runs: Mapping[str, PrimitiveRun]) -> bool:
    """Whether the primitive comes after an output of its own task that is not done."""
    task = runs[primitive.id].task
    before = (runs[id] for id in primitive.after)
    return any(run.task is task and run.state is not RunState.DONE for run in before)


def failed_input(
    task: Task, primitive: Primitive, variables: Mapping[str, SessionVariable]
) -> WeftlineError | None:
    """The error of the first failed variable among those that the task needs.

    A variable that no branch took has no failure. A step that came after it for order alone begins
    all the same, if the pass `order` has found that this order changes nothing.
    """
    for name in task.reads:
        variable = variables[name]
        if variable.error is None or name in task.tolerates:
            continue
        is_read = any(read.variable == name for read in primitive.reads)
        if is_read or variable.state is not VariableState.SKIPPED:
            return variable.error
    return None


def lost_read(
    primitive: Primitive, variables: Mapping[str, SessionVariable]
) -> WeftlineError | None:
    """The error of the first variable it reads that will never have a value."""
    for variable, flow in primitive.reads:
        error = variables[variable].error
        if error is not None and flow is not Flow.OUTCOME and flow not in DISTANT:
            return error
    return None


def undecided(graph: Graph, lost: Iterable[str]) -> Iterator[str]:
    """The variables that only a decision could have made the primitives `lost` read."""
    for id in lost:
        yield from (read.variable for read in graph.primitives[id].reads if read.flow is Flow.SIDE)


def takers(graph: Graph, runs: Mapping[str, PrimitiveRun], variable: str) -> Iterator[Fill]:
    """Pass the new items of a list to the waiting readers that take it item by item."""
    for id in graph.consumers.get(variable, ()):
        run = runs[id]
        if run.state is not RunState.WAITING or not run.filling:
            continue  # its prompt may continue an output that is not done
        if (variable, Flow.ITEMS) in graph.primitives[id].reads:
            yield Fill(id)


def gathers(primitive: Primitive) -> bool:
    """Whether the primitive's value is the list of the values that it reads, in that order."""
    items = primitive.items
    return items is not None and items.ordered and not items.takes
