"""Whether a primitive can run: its inputs, what comes before it, and the failures among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weftline.errors import WeftlineError
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing
from weftline_server.graph.primitive import Flow, Primitive, Task
from weftline_server.session.events import Fill
from weftline_server.session.task import PrimitiveRun, RunState
from weftline_server.session.variable import Variable, VariableState

_WAITS_FOR_NOTHING = frozenset({Flow.LATER})


def ready_reads(primitive: Primitive, variables: Mapping[str, Variable], start: int = 0) -> int:
    """How many of its reads are there, up to the first that is not; `start` of them are."""
    reads = primitive.reads
    for at in range(start, len(reads)):
        variable, flow = reads[at]
        state = variables[variable].state
        if state is VariableState.READY or flow in _WAITS_FOR_NOTHING:
            continue
        if flow is not Flow.OUTCOME or not variables[variable].settled:
            return at
    return len(reads)


def is_behind(primitive: Primitive, runs: Mapping[str, PrimitiveRun]) -> bool:
    """Whether a primitive that has to end before this one has not."""
    return any(runs[before].state is not RunState.DONE for before in primitive.after)


def failed_input(task: Task, variables: Mapping[str, Variable]) -> WeftlineError | None:
    """The error of the first variable that failed of those that the task names and needs."""
    for read in task.reads:
        if (error := variables[read].error) is not None and read not in task.tolerates:
            return error
    return None


def lost_read(primitive: Primitive, variables: Mapping[str, Variable]) -> WeftlineError | None:
    """The error of the first of its reads that will never have a value."""
    for variable, flow in primitive.reads:
        error = variables[variable].error
        if error is not None and flow is not Flow.OUTCOME and flow not in _WAITS_FOR_NOTHING:
            return error
    return None


def undecided(graph: Graph, lost: Iterable[str]) -> Iterator[str]:
    """The variables that only a decision of the primitives `lost` could have needed."""
    for id in lost:
        if isinstance(body := graph.primitives[id].body, Growing):
            yield from body.undecided


def takers(graph: Graph, runs: Mapping[str, PrimitiveRun], variable: str) -> Iterator[Fill]:
    """Let the waiting readers that take a list item by item have its new items."""
    for id in graph.consumers.get(variable, ()):
        run = runs[id]
        if run.state is not RunState.WAITING or not run.filling:
            continue  # its prompt may continue an output that is not done
        if (variable, Flow.ITEMS) in graph.primitives[id].reads:
            yield Fill(id)


def gathers(primitive: Primitive) -> bool:
    """Whether its value is a list of what it reads, in that order."""
    items = primitive.items
    return items is not None and items.ordered and not items.takes
