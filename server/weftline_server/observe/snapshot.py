"""A session as it was at one moment, to be shown in parts while the session goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from weftline_server.graph.wiring import Wiring
from weftline_server.passes import Plan
from weftline_server.session.session import ServerSession
from weftline_server.session.task import LIVE, PrimitiveRun, PrimitiveTimes, TaskRun
from weftline_server.session.variable import VariableState

PART = 256  # tasks that are put together between two pauses, in 1 ms


class Snapshot:
    """What changes of a session is copied at once: of 10,000 calls in 10 to 30 ms. `tasks` are put
    together of that by `restore`, a part at a time.
    """

    def __init__(self, session: ServerSession) -> None:
        self.id = session.id
        self.opened = session.opened
        self.ended = session.ended
        self.graph = _wired(session.graph)
        plan = session.plan
        self.plan = Plan(
            criteria=dict(plan.criteria),
            depth=plan.depth.copy(),
            objective=plan.objective.copy(),
            group=plan.group.copy(),
            prefixes=plan.prefixes.copy(),
        )
        self.variables = [
            Shown(one.id, one.state, one.chars, one.reads) for one in session.variables.values()
        ]
        self.answers = calling_answers(session)
        self.tasks: dict[str, TaskRun] = {}
        self._runs = [(run, run.error, run.ended) for run in session.tasks.values()]
        self._states = [(run.state, _kept(run)) for run in session.primitives.values()]

    def restore(self) -> Iterator[None]:
        """Fill `tasks`, with a pause after each part."""
        states = iter(self._states)
        for number, (run, error, ended) in enumerate(self._runs, 1):
            made = TaskRun(run.task, run.submitted, run.detached, run.origin, error, ended)
            for primitive in made.primitives:
                primitive.state, primitive.step = next(states)
            self.tasks[made.task.id] = made
            if number % PART == 0:
                yield


class Shown(NamedTuple):
    """What is shown of a variable."""

    id: str
    state: VariableState
    chars: int
    reads: int


def _wired(graph: Wiring) -> Wiring:
    made = Wiring()
    made.tasks = graph.tasks.copy()
    made.primitives = graph.primitives.copy()
    made.producer = graph.producer.copy()
    return made


def _kept(run: PrimitiveRun) -> PrimitiveTimes | None:
    """The step as it is now; one that has ended does not change any more."""
    return replace(run.step) if run.step is not None and run.state in LIVE else run.step


Seen = ServerSession | Snapshot  # both can be shown


def calling_answers(session: Seen) -> Mapping[str, Any]:
    """The answers that call tools, by their variables."""
    if isinstance(session, Snapshot):
        return session.answers
    values = ((id, one.value) for id, one in session.variables.items())
    return {id: value for id, value in values if isinstance(value, dict) and "tool_calls" in value}
