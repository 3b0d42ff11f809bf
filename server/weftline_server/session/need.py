"""Decides whether a step that changes something outside the graph may run now. A step that only the
undecided side of a branch needs may not, because the branch may take the other side.

All other steps of a side may start before the decision; their results are thrown away if the branch
takes another side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum

from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing, TakesItems
from weftline_server.graph.idle import is_idle
from weftline_server.graph.primitive import Effects, Flow, Primitive, Read
from weftline_server.session.task import PrimitiveRun, RunState, TaskRun

Runs = Mapping[str, PrimitiveRun]


class Need(Enum):
    """Whether a step that changes something is needed."""

    CERTAIN = "certain"
    UNDECIDED = "undecided"  # only sides of branches need it, and it is open which are taken
    NONE = "none"  # only sides need it, and none of them was taken


def decides(primitive: Primitive) -> bool:
    """Whether the primitive decides which of several variables are needed."""
    return any(read.flow is Flow.SIDE for read in primitive.reads)


def changes(primitive: Primitive) -> bool:
    """Whether the primitive, or what it adds to the graph, changes something outside the graph."""
    if primitive.effects is not Effects.NONE:
        return True
    return isinstance(primitive.body, Growing) and primitive.body.changes


def need_of(graph: Graph, runs: Runs, released: Collection[str], task: TaskRun) -> Need:
    """Whether the task is needed. `released` are variables that a decision has left without a
    reader. Any other variable that nothing reads is needed: a client may want it.
    """
    found = Need.NONE
    for need in _needs(graph, runs, released, task):
        if need is Need.CERTAIN:
            return need
        found = need
    return found


def is_needed(graph: Graph, runs: Runs, released: Collection[str], task: TaskRun) -> bool:
    """Whether a client, or a task that has not ended, may read an output of this task. A task that
    changes something may also be needed by a task that has failed, because the change does not
    depend on the other inputs of its reader.
    """
    if any(changes(graph.primitives[run.id]) for run in task.primitives):
        return next(_needs(graph, runs, released, task), None) is not None
    return _reads_ahead(graph, runs, released, task)


def _reads_ahead(graph: Graph, runs: Runs, released: Collection[str], task: TaskRun) -> bool:
    for variable in _given(graph, task):
        readers = [id for id in graph.consumers.get(variable, ()) if runs[id].task is not task]
        if not readers and variable not in released:
            return True
        for id in reversed(readers):
            side = Read(variable, Flow.SIDE)
            if runs[id].live or (runs[id].task.live and side not in graph.primitives[id].reads):
                return True
    return False


def _needs(graph: Graph, runs: Runs, released: Collection[str], task: TaskRun) -> Iterator[Need]:
    """The needs that a search down the graph finds, depth first: most often the first reader at the
    end of a path says enough.
    """
    seen = {task.task.id}
    path = [_readers(graph, runs, task)]
    while path:
        edge = next(path[-1], None)
        if edge is None:
            path.pop()
            continue
        variable, reader = edge
        if reader is None:
            if variable not in released:
                yield Need.CERTAIN
        elif reader.task.task.id in seen or reader.state is RunState.SKIPPED:
            continue
        elif _is_early(graph, reader):
            yield Need.UNDECIDED
        elif Read(variable, Flow.SIDE) not in graph.primitives[reader.id].reads:
            seen.add(reader.task.task.id)
            path.append(_readers(graph, runs, reader.task))
        elif reader.live:
            yield Need.UNDECIDED
        elif reader.state is RunState.CANCELLED:
            yield Need.CERTAIN  # it decides nothing, and a client may want its sides


def _readers(graph: Graph, runs: Runs, task: TaskRun) -> Iterator[tuple[str, PrimitiveRun | None]]:
    """The readers of what the task gives, and None for a variable without one. The newest come
    first: the first items of a list have been decided on.
    """
    for variable in _given(graph, task):
        is_read = False
        for id in reversed(graph.consumers.get(variable, ())):
            reader = runs[id]
            if reader.task is task or _is_idle(graph, graph.primitives[id], variable):
                continue
            is_read = True
            yield variable, reader
        if not is_read:
            yield variable, None


def _is_idle(graph: Graph, reader: Primitive, variable: str) -> bool:
    """Whether the edge only orders, and for nothing. The pass `order` takes such edges away."""
    if not reader.traits.has_order:
        return False  # it may have 10,000 other edges to look through
    read = Read(variable, Flow.ORDER)
    return read in reader.reads and is_idle(graph, reader, read)


def _is_early(graph: Graph, reader: PrimitiveRun) -> bool:
    """Whether the reader gathers the results of items that came before their list was complete."""
    first = reader.task.primitives[0]
    if first is reader or not first.live:
        return False
    return isinstance(graph.primitives[first.id].body, TakesItems)


def above(graph: Graph, runs: Runs, variables: Iterable[str]) -> Iterator[str]:
    """The primitives that these variables depend on, for as long as their tasks wait or fail."""
    waiting = list(variables)
    seen: set[str] = set()
    while waiting:
        if (writer := graph.producer.get(waiting.pop())) is None:
            continue
        task = runs[writer].task
        if task.task.id in seen or not (task.live or task.error is not None):
            continue
        seen.add(task.task.id)
        for run in task.primitives:
            yield run.id
            reads = graph.primitives[run.id].reads
            waiting += [one.variable for one in reads if one.flow is not Flow.SIDE]


def _given(graph: Graph, task: TaskRun) -> list[str]:
    """The variables of a task that others may read. A task that decides has one variable for the
    server. This variable counts where something reads it, as at the end of a loop's round.
    """
    own = (graph.primitives[run.id] for run in task.primitives)
    return [
        var
        for one in own
        for var in one.writes
        if not isinstance(one.body, Growing) or one.body.gives or graph.consumers.get(var)
    ]
