"""Which tasks serve undecided sides of branches only, and wait for the decision.

Steps of a side may run before its branch is decided: that is speculation. A model never generates
text for a side that may not be taken, because others wait for the engine, and a hosted one bills
it. Only its prompt is filled early. What changes something outside the graph is never speculative
either; see `weftline_server.session.wanted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weftline_server.graph.growth import Growing
from weftline_server.graph.primitive import Task
from weftline_server.lowering.control.branch import DecideBody


def gated(tasks: Sequence[Task], *, steps: bool = False) -> list[Task]:
    """The tasks, in which those that a decision may make needless come after it: those in which a
    model generates text, and with `steps` all.

    Only tasks of one submit are seen together: a side that was submitted before its branch has
    begun.
    """
    branches = [task for task in tasks if _decides(task)]
    if not branches:
        return list(tasks)
    writer = {variable: task for task in tasks for variable in _given(task)}
    readers: dict[str, list[Task]] = {}
    for task in tasks:
        for variable in task.reads:
            readers.setdefault(variable, []).append(task)
    waits: dict[str, list[str]] = {}
    for branch in branches:
        decision = branch.primitives[0]
        assert isinstance(decision.body, DecideBody)
        for task in _only_for(branch, decision.body.step.sides, writer, readers):
            if steps or _generates(task):
                waits.setdefault(task.id, []).append(decision.id)
    return [after(task, waits.get(task.id, ())) for task in tasks]


def _only_for(
    branch: Task,
    sides: Iterable[str],
    writer: Mapping[str, Task],
    readers: Mapping[str, Sequence[Task]],
) -> Iterable[Task]:
    """The tasks that nothing but sides of the branch needs. What decides is none of them."""
    decides = set(branch.reads) - branch.tolerates
    found: dict[str, Task] = {}
    waiting = [writer[side] for side in sides if side in writer]
    while waiting:
        task = waiting.pop()
        if task.id in found or decides.intersection(_given(task)):
            continue
        own = {reader.id for variable in _given(task) for reader in readers.get(variable, ())}
        unread = [variable for variable in _given(task) if variable not in readers]
        # A variable without a reader may be one that the client wants.
        if unread or not own <= {branch.id, *found}:
            continue
        found[task.id] = task
        waiting += [writer[variable] for variable in task.reads if variable in writer]
    return found.values()


def _generates(task: Task) -> bool:
    """Whether a model generates text in the task, or in what it adds to the graph."""
    bodies = (one.body for one in task.primitives)
    grows = any(isinstance(body, Growing) and body.generates for body in bodies)
    return grows or task.call is not None


def _decides(task: Task) -> bool:
    return bool(task.primitives) and isinstance(task.primitives[0].body, DecideBody)


def _given(task: Task) -> tuple[str, ...]:
    """The variables of a task that others may read."""
    given = (one for one in task.primitives if not isinstance(one.body, Growing))
    return tuple(variable for one in given for variable in one.writes)


def after(task: Task, decisions: Sequence[str]) -> Task:
    """The task, which starts when these primitives have ended."""
    if not decisions:
        return task
    primitives = [replace(one, after=(*one.after, *decisions)) for one in task.primitives]
    return replace(task, primitives=tuple(primitives))
