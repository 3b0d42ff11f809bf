"""The records of a session, read back from JSON, give the same session."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis.stateful import rule

from tests.null.test_session_machine import NAMES, SessionMachine
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.contract.vectors import plain
from weftline_server.graph.primitive import Effects, Traits, Where
from weftline_server.journal.records import Clock, decode, encode, noted
from weftline_server.journal.replay import Opened, replay, resumed
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState

CLOCK = Clock(1000.0)
OPENED = Opened(tenant="t", id="s", alias="", at=1000.0, stays=True)


def made(id: str, tenant: str, now: float, stays: bool) -> ServerSession:
    return ServerSession(id, tenant, now, stays=stays)


class RecordedMachine(SessionMachine):
    """Writes down what a store would hold; at the end another run reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[bytes] = []

    @rule(writes=NAMES)
    def start(self, writes: str) -> None:
        """Submit a call that waits for nothing; without it hardly any call would end."""
        self.submit("", writes, False)

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


def lasting(session: ServerSession) -> dict[str, Any]:
    """What a session is, apart from its readers and the calls that run.

    The text of a call that was stopped while it ran is not recorded, nor why a call ran on its
    engine, nor the counts that readers see before its end. A record has vectors as JSON.
    """
    graph = session.graph
    named = {*graph.producer, *graph.consumers}
    stopped = {
        variable
        for variable, id in graph.producer.items()
        if (step := session.primitives[id].step) is None or step.finished is None
    }
    ended = {id: run for id, run in session.primitives.items() if not run.live}
    return {
        "tasks": {
            id: ("live" if run.live else run.state, run.detached, str(run.error))
            for id, run in session.tasks.items()
        },
        "steps": {
            id: replace(run.step, why=(), charged=0, made=0)
            for id, run in ended.items()
            if run.state == "done" and run.step is not None
        },
        "variables": {
            id: (one.state, id not in stopped and one.text, plain(one.value), str(one.error))
            if one.settled
            else "open"
            for id, one in session.variables.items()
            if one.settled or id in named
        },
        "graph": (sorted(graph.primitives), graph.producer, graph.consumers),
        "spent": (session.spent.calls, session.spent.edges, session.spent.value_bytes),
        "work_left": session.execution.work_left,
        "ended": session.ended,
    }


def test_the_departure_of_a_reader_is_recorded_as_what_it_ended() -> None:
    """Two calls, the second reads the first. Their only reader leaves: both are cancelled, in a
    replay too, which knows no readers.
    """
    session = made("s", "t", 0.0, True)
    records: list[bytes] = []

    def tell(event: ev.SessionEvent) -> None:
        found = noted(session, event, session.handle(event))
        if found is not None:
            records.append(encode(found, CLOCK))

    holder = Placeholder(name="y", in_out=InOut.OUT, semantic_var_id="a")
    reader = Placeholder(name="x", in_out=InOut.IN, semantic_var_id="a")
    last = Placeholder(name="y", in_out=InOut.OUT, semantic_var_id="b")
    first = Call(name="1", prompt=(Segment(text="t"), Segment(output="y")), placeholders=(holder,))
    prompt = (Segment(input="x"), Segment(output="y"))
    second = Call(name="2", prompt=prompt, placeholders=(reader, last))
    tell(ev.TasksSubmitted(now=0.0, tasks=(task_of("c1", first), task_of("c2", second))))
    tell(ev.ReaderOpened(now=0.0, variable="b"))
    tell(ev.ReaderClosed(now=1.0, variable="b", served=False))
    assert [run.state for run in session.tasks.values()] == ["cancelled", "cancelled"]
    again = replay(OPENED, records, CLOCK, made)
    again.validate()
    assert lasting(again) == lasting(session)


_X = {"var": "x", "value": None, "transforms": []}
_STEP = {"name": "", "after": []}
_SAYS_A = {"op": "contains", "value": "a"}
# The tasks of a submit as an earlier version wrote them, whose primitives had no traits.
OLD_TASKS: tuple[tuple[dict[str, Any], Traits], ...] = (
    (
        {
            "id": "c_1",
            "call": {
                "name": "c",
                "prompt": [{"text": "hi "}, {"output": "o"}],
                "placeholders": [{"name": "o", "in_out": "out", "semantic_var_id": "o"}],
                "model": "m",
            },
        },
        Traits(has_prompt=True, has_order=False),
    ),
    (
        {
            "id": "s_1",
            "step": {**_STEP, "out": "y", "kind": "client", "reads": ["x"], "effects": "none",
                     "lease_s": 60.0},
            "resource": "",
            "batch": None,
        },
        Traits(where=Where.CLIENT, anywhere=True, operation="execute_tool"),
    ),
    (
        {
            "id": "s_2",
            "step": {**_STEP, "out": "e", "in": _X, "kind": "embed", "engine": None},
            "resource": "words",
            "batch": 4,
        },
        Traits(operation="embeddings"),
    ),
    (
        {
            "id": "s_3",
            "step": {**_STEP, "out": "r", "on": _X, "cases": [{"when": _SAYS_A, "take": "p"}],
                     "default": "q", "kind": "branch"},
            "resource": "",
            "batch": None,
        },
        Traits(where=Where.SERVER, chooses=True),
    ),
    (
        {
            "id": "t_1",
            "tool": {"name": "add", "arguments": "{}", "effects": "once"},
            "resource": "tools",
            "writes": ["t_1.out"],
        },
        Traits(anywhere=True, of_request=True, operation="execute_tool"),
    ),
)  # fmt: skip


def test_a_record_of_an_earlier_version_gives_primitives_with_traits() -> None:
    """A record holds what was submitted. It is lowered anew, and gets what lowering sets."""
    tasks = [task for task, _ in OLD_TASKS]
    record = {"v": 1, "e": "submitted", "t": 1000.0, "tasks": tasks, "detach": False}
    [event] = decode(json.dumps(record).encode(), CLOCK)
    assert isinstance(event, ev.TasksSubmitted)
    assert [task.primitives[0].traits for task in event.tasks] == [one for _, one in OLD_TASKS]
    assert event.tasks[-1].primitives[0].effects is Effects.ONCE
    session = made("s", "t", 1000.0, True)
    session.handle(event)
    session.validate()
