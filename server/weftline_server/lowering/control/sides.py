"""Which tasks serve undecided sides of branches only, and wait for the decision.

Steps of a side may run before its branch is decided: that is speculation. A model never generates
text for a side that may not be taken, because other calls wait for the engine, and a hosted engine
bills the text. Only the prompt of such a call is filled early. A step that changes something
outside the graph is never speculative either; see `weftline_server.session.need`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weftline_server.graph.growth import Growing
from weftline_server.graph.primitive import Flow, Task
from weftline_server.lowering.control.branch import DecideBody


def gated(tasks: Sequence[Task], *, steps: bool = False) -> list[Task]:
    """The tasks, changed so that each task which a decision may make needless waits for the
    decision. Only tasks in which a model generates text wait, and with `steps` all of them.

    Only tasks of one submit are seen together: a side that was submitted before its branch has
    begun.
    """
    branches = [task for task in tasks if _decides(task)]
    if not branches:
        return list(tasks)
    writer = {variable: task for task in tasks for variable in given(task)}
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


def read_by_sides(tasks: Sequence[Task], asked: Iterable[str]) -> frozenset[str]:
    """The variables that the tasks read, but not for certain: only sides of branches need them.

    The variables in `asked` are certain, and so are variables that no task reads. All variables
    that lead to a certain variable are certain, too.
    """
    edges = [(task, read) for task in tasks for one in task.primitives for read in one.reads]
    read_at_all = {read.variable for _, read in edges}
    certain = {*asked, *(v for task in tasks for v in given(task) if v not in read_at_all)}
    above: dict[str, list[str]] = {}  # variable → what its task reads
    for task in tasks:
        reads = [read.variable for one in task.primitives for read in one.reads
                 if read.flow is not Flow.SIDE]  # fmt: skip
        above.update(dict.fromkeys(given(task), reads))
    waiting = list(certain)
    while waiting:
        found = [one for one in above.pop(waiting.pop(), ()) if one not in certain]
        certain.update(found)
        waiting += found
    return frozenset(read_at_all - certain)


def _only_for(
    branch: Task,
    sides: Iterable[str],
    writer: Mapping[str, Task],
    readers: Mapping[str, Sequence[Task]],
) -> Iterable[Task]:
    """The tasks that nothing but sides of the branch needs, without the tasks that decide."""
    decides = set(branch.reads) - branch.tolerates
    found: dict[str, Task] = {}
    waiting = [writer[side] for side in sides if side in writer]
    while waiting:
        task = waiting.pop()
        if task.id in found or decides.intersection(given(task)):
            continue
        own = {reader.id for variable in given(task) for reader in readers.get(variable, ())}
        unread = [variable for variable in given(task) if variable not in readers]
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


def given(task: Task) -> tuple[str, ...]:
    """The variables of a task that others may read."""
    bodies = ((one, one.body) for one in task.primitives)
    given = (one for one, body in bodies if not isinstance(body, Growing) or body.gives)
    return tuple(variable for one in given for variable in one.writes)


def after(task: Task, decisions: Sequence[str]) -> Task:
    """The task, which starts when these primitives have ended."""
    if not decisions:
        return task
    primitives = [replace(one, after=(*one.after, *decisions)) for one in task.primitives]
    return replace(task, primitives=tuple(primitives))
