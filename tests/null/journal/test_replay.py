"""The records of a session, read back from JSON, give the same session."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

from tests.null.test_session_machine import SessionMachine
from weftline_server.journal.records import Clock, encode, noted
from weftline_server.journal.replay import Opened, replay, resumed
from weftline_server.session import events as ev
from weftline_server.session.session import Session
from weftline_server.session.task import RunState

CLOCK = Clock(1000.0)
OPENED = Opened(tenant="t", id="s", alias="", at=1000.0, stays=True)


def made(id: str, tenant: str, now: float, stays: bool) -> Session:
    return Session(id, tenant, now, stays=stays)


class RecordedMachine(SessionMachine):
    """Writes down what a store would hold; at the end another run reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[bytes] = []

    def tell(self, event: ev.SessionEvent) -> None:
        super().tell(event)
        found = noted(self.session, event, self.heard[-1][1])
        if found is not None:
            self.records.append(encode(found, CLOCK))

    def teardown(self) -> None:
        again = replay(OPENED, self.records, CLOCK, made)
        again.validate()
        assert lasting(again) == lasting(self.session)
        live = {id for id, run in again.primitives.items() if run.state is RunState.QUEUED}
        actions = again.handle(resumed(0.0, 2))
        again.validate()
        assert [one.primitive for one in actions if isinstance(one, ev.Run)] == sorted(
            live, key=list(again.primitives).index
        )
        assert {one.attempt for one in again.variables.values() if not one.settled} <= {2 << 20}


RecordedMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestRecorded = RecordedMachine.TestCase


def lasting(session: Session) -> dict[str, Any]:
    """What a session is, apart from its readers and the calls that run."""
    graph = session.graph
    named = {*graph.producer, *graph.consumers}
    ended = {id: run for id, run in session.primitives.items() if not run.live}
    return {
        "tasks": {
            id: ("live" if run.live else run.state, run.detached, str(run.error))
            for id, run in session.tasks.items()
        },
        "steps": {id: (run.state, run.step) for id, run in ended.items() if run.state == "done"},
        "variables": {
            id: (one.state, one.text, one.value, str(one.error)) if one.settled else "open"
            for id, one in session.variables.items()
            if one.settled or id in named
        },
        "graph": (sorted(graph.primitives), graph.producer, graph.consumers),
        "spent": (session.spent.calls, session.spent.edges, session.spent.value_bytes),
        "work_left": session.execution.work_left,
        "ended": session.ended,
    }
