"""Decides whether something outside the graph may be changed now: not for the undecided side of a
branch, because the branch may not take it.

All else of a side may start before the decision; what it computes is thrown away if need be.
"""

from __future__ import annotations

from collections.abc import Mapping

from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing
from weftline_server.graph.primitive import Effects, Flow, Primitive
from weftline_server.session.task import PrimitiveRun, TaskRun


def decides(primitive: Primitive) -> bool:
    """Whether the primitive decides which of several variables are needed."""
    return isinstance(primitive.body, Growing) and bool(primitive.body.undecided)


def is_unsure(graph: Graph, runs: Mapping[str, PrimitiveRun], id: str) -> bool:
    """Whether the primitive changes something, and all that needs it are undecided sides.

    A variable that nothing reads is needed: a client may want it. The search goes down the graph
    until it finds one such.
    """
    if not _changes(graph.primitives[id]):
        return False
    waiting = [runs[id].task]
    seen = {runs[id].task.task.id}
    met = False
    while waiting:
        task = waiting.pop()
        for variable in _given(graph, task):
            readers = [
                one for one in graph.consumers.get(variable, ()) if runs[one].task is not task
            ]
            if not readers:
                return False
            for reader in readers:
                below = runs[reader].task
                if not below.live or below.task.id in seen:
                    continue
                if _is_open_side(graph, below, graph.primitives[reader], variable):
                    met = True
                else:
                    seen.add(below.task.id)
                    waiting.append(below)
    return met


def _changes(primitive: Primitive) -> bool:
    if primitive.effects is not Effects.NONE:
        return True
    return isinstance(primitive.body, Growing) and primitive.body.changes


def _given(graph: Graph, task: TaskRun) -> list[str]:
    """The variables of a task that others may read."""
    own = (graph.primitives[run.id] for run in task.primitives)
    return [var for one in own if not isinstance(one.body, Growing) for var in one.writes]


def _is_open_side(graph: Graph, task: TaskRun, reader: Primitive, variable: str) -> bool:
    """Whether `task` is a branch that may still take this variable, or another one."""
    first = task.primitives[0]
    body = graph.primitives[first.id].body
    if not (first.live and isinstance(body, Growing) and variable in body.undecided):
        return False
    return (variable, Flow.LATER) in reader.reads
