"""The critical path of a session: the tasks that its duration consists of, and where time went.

The search goes backwards from the task that ended last. The task before another one is the producer
of its inputs that ended last. So shortening a task beside the path does not shorten the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from weftline_server.graph.primitive import Where
from weftline_server.observe.parts import Parts
from weftline_server.observe.snapshot import Seen
from weftline_server.session.task import RunState, TaskRun

# What the seconds of the path were spent on, as a sentence says it.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "client": "waiting for the client",
        "server": "in the server between two steps",
        "queue": "waiting for an engine",
        "fill": "prefill",
        "generate": "generating text",
        "transform": "transforms of outputs",
        "step": "steps that are no calls",
    }
)

PAUSED = 128  # tasks of the path between two pauses, in 2 ms


@dataclass(frozen=True, slots=True)
class PathTask:
    """One task on the path: the seconds since the task before it had ended, by cause."""

    task: str
    name: str
    seconds: Mapping[str, float]

    @property
    def own(self) -> float:
        """Seconds that the task itself took."""
        return sum(s for cause, s in self.seconds.items() if cause not in ("client", "server"))


def critical_path(session: Seen) -> list[PathTask]:
    """The parts of the path, the first task first; empty before any task has ended."""
    return list(_backwards(session))[::-1]


def _backwards(session: Seen) -> Iterator[PathTask]:
    run = max(filter(_is_done, session.tasks.values()), key=_end_of, default=None)
    while run is not None:
        before = _before(session, run)
        since = session.opened if before is None else _end(before)
        assert since is not None, "a task before another one has ended"
        yield PathTask(run.task.id, run.task.name, _seconds(session, run, since))
        run = before


def critical_view(session: Seen) -> dict[str, Any]:
    """The path as JSON: task ids in order, seconds by cause, and what they say in a sentence."""
    return _view(critical_path(session))


def critical_parts(session: Seen) -> Parts:
    """What `critical_view` gives as the field `critical`, with pauses."""
    yield None
    parts: list[PathTask] = []
    for number, part in enumerate(_backwards(session), 1):
        parts.append(part)
        if number % PAUSED == 0:
            yield None
    yield "critical", _view(parts[::-1])


def _view(parts: list[PathTask]) -> dict[str, Any]:
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for cause, seconds in part.seconds.items():
            total[cause] += seconds
    return {
        "tasks": [part.task for part in parts],
        "seconds": {cause: total[cause] for cause in WORDS if total[cause] > 0},
        "sentence": _sentence(parts, total),
    }


def _sentence(parts: list[PathTask], total: Mapping[str, float]) -> str:
    whole = sum(total.values())
    if not parts or whole <= 0:
        return "nothing has ended yet"
    cause = max(WORDS, key=lambda one: total.get(one, 0.0))
    longest = max(parts, key=lambda part: part.own)
    return (
        f"{100 * total[cause] / whole:.0f} % of the time was {WORDS[cause]}; "
        f"shortening {longest.name!r} helps most ({longest.own:.2f} s of {whole:.2f} s)"
    )


def _end(run: TaskRun) -> float | None:
    """When a task was done; None of one that is not, or that failed before an engine had it."""
    steps = run.steps
    return steps[-1].finished if steps and run.state is RunState.DONE else None


def _is_done(run: TaskRun) -> bool:
    return _end(run) is not None


def _end_of(run: TaskRun) -> float:
    return _end(run) or 0.0


def _before(session: Seen, run: TaskRun) -> TaskRun | None:
    """The producer of its inputs that ended last; None of a task that reads no other's output.

    A task of a side may wait for a branch that ends after it, with its value. Then it waited for
    what the branch has read.
    """
    end, found = _end(run) or 0.0, dict[str, TaskRun]()
    waiting = [run]
    while waiting:
        for id in session.graph.tasks_above(waiting.pop().task.id):
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
            by_client = run.task.primitives[0].traits.where is Where.CLIENT
            spent["client" if by_client else "step"] += step.finished - step.queued
        at = max(at, step.finished or at)
    return {cause: seconds for cause, seconds in spent.items() if seconds > 0}
