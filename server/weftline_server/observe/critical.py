"""The critical path of a session: the tasks that its duration consists of, and where time went.

The search goes backwards from the task that ended last. The task before another one is the producer
of its inputs that ended last, also where a client ran tools in between. So shortening a task beside
the path does not shorten the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from weftline_server.graph.primitive import Where
from weftline_server.observe.client_tools import ClientToolRun
from weftline_server.observe.edges import Links, links_of
from weftline_server.observe.parts import Parts
from weftline_server.observe.savings import StepWork, saved_without, step_of
from weftline_server.observe.snapshot import Seen
from weftline_server.session.task import RunState, TaskRun

# What the seconds of the path were spent on, as a sentence says it.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "client": "waiting for the client",
        "tools": "waiting for tools",
        "server": "in the server between two steps",
        "queue": "waiting for a full engine",
        "fill": "prefill",
        "generate": "generating text",
        "transform": "transforms of outputs",
        "step": "steps that are no calls",
    }
)

PAUSED = 128  # tasks of the path between two pauses, in 2 ms
# What a step saves is looked up for a few steps, in sessions of so many tasks: 10 ms.
MOST_STEPS, MOST_TASKS = 4, 2000
LEAST_SHARE = 0.02  # of the run; a smaller saving is none
NOT_OWN = frozenset({"client", "server", "tools"})


@dataclass(frozen=True, slots=True)
class PathTask:
    """One task on the path: the seconds since the task before it had ended, by cause. Tools that a
    client ran at the same time are one.
    """

    task: str
    name: str
    seconds: Mapping[str, float]
    beside: tuple[str, ...] = ()

    @property
    def own(self) -> float:
        """Seconds that the task itself took."""
        return sum(s for cause, s in self.seconds.items() if cause not in NOT_OWN or self.is_tool)

    @property
    def is_tool(self) -> bool:
        """Whether it stands for tools of the client."""
        return "tools" in self.seconds and len(self.seconds) == 1


def critical_path(session: Seen, links: Links | None = None) -> list[PathTask]:
    """The parts of the path, the first task first; empty before any task has ended."""
    return list(_backwards(session, links or links_of(session)))[::-1]


def _backwards(session: Seen, links: Links) -> Iterator[PathTask]:
    asked: dict[tuple[str, str], list[ClientToolRun]] = {}
    for tool in links.tools:
        asked.setdefault((tool.asked_by, tool.read_by), []).append(tool)
    run = max(filter(_is_done, session.tasks.values()), key=_end_of, default=None)
    while run is not None:
        before = _before(session, links, run)
        since = session.opened if before is None else _end(before)
        assert since is not None, "a task before another one has ended"
        tools = asked.get((before.task.id, run.task.id), ()) if before is not None else ()
        waited = run.submitted - since
        if tools and waited > 0:
            since = run.submitted
        yield PathTask(run.task.id, run.task.name, _seconds(session, run, since))
        if tools and waited > 0:
            names = ", ".join(dict.fromkeys(tool.name for tool in tools))
            beside = tuple(tool.id for tool in tools[1:])
            yield PathTask(tools[0].id, names, {"tools": waited}, beside)
        run = before


def critical_view(session: Seen, links: Links | None = None) -> dict[str, Any]:
    """The path as JSON: task ids in order, seconds by cause, and what they say in a sentence."""
    links = links or links_of(session)
    return _view(session, links, critical_path(session, links))


def critical_parts(session: Seen, links: Links) -> Parts:
    """What `critical_view` gives as the field `critical`, with pauses."""
    yield None
    parts: list[PathTask] = []
    for number, part in enumerate(_backwards(session, links), 1):
        parts.append(part)
        if number % PAUSED == 0:
            yield None
    yield "critical", _view(session, links, parts[::-1])


def _view(session: Seen, links: Links, parts: list[PathTask]) -> dict[str, Any]:
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for cause, seconds in part.seconds.items():
            total[cause] += seconds
    return {
        "tasks": [id for part in parts for id in (part.task, *part.beside)],
        "seconds": {cause: total[cause] for cause in WORDS if total[cause] > 0},
        "sentence": _sentence(session, links, parts, total),
    }


def _sentence(
    session: Seen, links: Links, parts: list[PathTask], total: Mapping[str, float]
) -> str:
    whole = sum(total.values())
    if not parts or whole <= 0:
        return "nothing has ended yet"
    cause = max(WORDS, key=lambda one: total.get(one, 0.0))
    said = f"{100 * total[cause] / whole:.0f} % of the time was {WORDS[cause]}"
    if len(session.tasks) > MOST_TASKS:
        return said
    saved, step = max(_savings(session, links, parts), default=(0.0, ""))
    if saved < LEAST_SHARE * whole:
        return f"{said}; shortening one step alone helps little"
    return f"{said}; shortening {step!r} helps most ({saved:.2f} s of {whole:.2f} s)"


def _savings(session: Seen, links: Links, parts: list[PathTask]) -> Iterator[tuple[float, str]]:
    """What the run had saved without each of the longest steps of the path."""
    own: dict[str, float] = defaultdict(float)
    for part in parts:
        own[step_of(part.name)] += part.own
    works = sorted(_works(session, links), key=lambda work: work.ended)
    for step in sorted(own, key=own.__getitem__, reverse=True)[:MOST_STEPS]:
        yield saved_without(works, step), step


def _works(session: Seen, links: Links) -> Iterator[StepWork]:
    """The tasks that have ended, and the tools between them, each with what it waited for."""
    between: dict[str, dict[str, None]] = {}
    named: dict[str, list[str]] = {}
    for tool in links.tools:
        if tool.ended is not None:
            between.setdefault(tool.read_by, {})[tool.id] = None
            named.setdefault(tool.read_by, []).append(tool.name)
    for tool in links.tools:
        if tool.ended is not None:
            names = ", ".join(dict.fromkeys(named[tool.read_by]))
            yield StepWork(tool.id, names, tool.ended, tool.ended - tool.began, (tool.asked_by,))
    for run in filter(_is_done, session.tasks.values()):
        id = run.task.id
        above = {**dict.fromkeys(session.graph.tasks_above(id)), **links.above.get(id, {})}
        above |= between.get(id, {})
        phases = [step.phases or {} for step in run.steps]
        took = sum(sum(one.values()) - one.get("queue", 0.0) for one in phases)
        if run.task.call is None:
            took = sum((step.finished or step.queued) - step.queued for step in run.steps)
        yield StepWork(id, step_of(run.task.name), _end_of(run), took, above)


def _end(run: TaskRun) -> float | None:
    """When a task was done; None of one that is not, or that failed before an engine had it."""
    steps = run.steps
    return steps[-1].finished if steps and run.state is RunState.DONE else None


def _is_done(run: TaskRun) -> bool:
    return _end(run) is not None


def _end_of(run: TaskRun) -> float:
    return _end(run) or 0.0


def _before(session: Seen, links: Links, run: TaskRun) -> TaskRun | None:
    """The producer of its inputs that ended last; None of a task that reads no other's output.

    A task of a side may wait for a branch that ends after it, with its value. Then it waited for
    what the branch has read.
    """
    end, found = _end(run) or 0.0, dict[str, TaskRun]()
    waiting = [run]
    while waiting:
        task = waiting.pop().task.id
        for id in (*session.graph.tasks_above(task), *links.above.get(task, ())):
            above = session.tasks[id]
            if id in found or above is run:
                continue
            ended = _end(above)
            if ended is not None and ended < end:
                found[id] = above
            elif above.task.primitives[0].traits.chooses and above.live is False:
                found[id] = above
                waiting.append(above)
    before = [one for one in found.values() if (_end(one) or end) < end]
    return max(before, key=lambda one: _end(one) or 0.0, default=None)


def _seconds(session: Seen, run: TaskRun, since: float) -> dict[str, float]:
    """Where the time from second `since` to the task's end went, by cause.

    A wait for a variable that no task writes is a wait for the client.
    """
    by_client = any(variable not in session.graph.producer for variable in run.task.reads)
    gap = "client" if by_client else "server"
    spent: dict[str, float] = defaultdict(float)
    came = max(since, run.submitted)
    spent["client"] = came - since
    at = came
    for step in run.steps:
        spent[gap] += max(0.0, step.queued - at)
        gap = "server"
        at = max(at, step.queued)
        phases = step.phases if run.task.call is not None else None
        if phases is not None:
            for cause, seconds in phases.items():
                spent[cause] += seconds
        elif step.finished is not None:
            spent[_cause(run)] += step.finished - step.queued
        at = max(at, step.finished or at)
    return {cause: seconds for cause, seconds in spent.items() if seconds > 0}


def _cause(run: TaskRun) -> str:
    """What the time of a step is called. A client's step is a tool of an agent, or its own work."""
    if run.task.primitives[0].traits.where is Where.CLIENT:
        return "tools" if run.task.owner else "client"
    return "step"
