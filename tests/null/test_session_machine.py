"""A session under random events keeps its invariants, reports its actions, and can be replayed."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.errors import EngineFailed, WeftlineError
from weftline_engine.api import FinishReason, Usage
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

USAGE = Usage(prompt_tokens=1, cached_tokens=0, output_tokens=1, started=0.0, filled=0.0)
NAMES = st.text("abcdefgh", min_size=1, max_size=3)


class SessionMachine(RuleBasedStateMachine):
    """Plays clients and engines. `active` are the primitives that the session asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.session = ServerSession("s", "t", now=0.0)
        self.active: set[str] = set()
        self.readers: list[str] = []
        self.count = 0
        self.heard: list[tuple[ev.SessionEvent, list[ev.Action]]] = []

    def tell(self, event: ev.SessionEvent) -> None:
        actions = self.session.handle(event)
        self.heard.append((event, actions))
        for action in actions:
            match action:
                case ev.Run(id):
                    assert id not in self.active, "run twice"
                    self.active.add(id)
                case ev.Stop(id):
                    self.active.discard(id)

    @rule(reads=NAMES, writes=NAMES, detach=st.booleans())
    def submit(self, reads: str, writes: str, detach: bool) -> None:
        self.count += 1
        reads, writes = "".join(set(reads)), "".join(set(writes))
        prompt = (*(Segment(input=f"i{v}") for v in reads), Segment(text="t"))
        prompt += tuple(Segment(output=f"o{v}") for v in writes)
        holders = [Placeholder(name=f"i{v}", in_out=InOut.IN, semantic_var_id=v) for v in reads]
        holders += [Placeholder(name=f"o{v}", in_out=InOut.OUT, semantic_var_id=v) for v in writes]
        made = Call(name=f"n{self.count}", prompt=prompt, placeholders=tuple(holders))
        before = (set(self.session.tasks), set(self.session.variables))
        event = ev.TasksSubmitted(now=0.0, tasks=(task_of(f"c{self.count}", made),), detach=detach)
        try:
            self.tell(event)
        except WeftlineError:
            assert before == (set(self.session.tasks), set(self.session.variables))

    @rule(name=st.sampled_from("abcdefgh"))
    def set(self, name: str) -> None:
        try:
            self.tell(ev.VariableSet(now=0.0, variable=name, value="v"))
        except WeftlineError:
            variable = self.session.variables[name]
            assert variable.settled or name in self.session.graph.producer

    @precondition(lambda self: self.active)
    @rule(data=st.data(), good=st.booleans())
    def finish(self, data: st.DataObject, good: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.active)))
        self.active.discard(id)
        self.tell(ev.PrimitivePrepared(now=0.0, primitive=id, tokens=1))
        self.tell(ev.PrimitiveSent(now=0.0, primitive=id, engine="e"))
        if good:
            self.tell(ev.TextGenerated(now=0.0, primitive=id, text="v"))
            done = ev.PrimitiveFinished(
                now=0.0, primitive=id, reason=FinishReason.STOP, usage=USAGE, value="v"
            )
            self.tell(done)
        else:
            self.tell(ev.PrimitiveFailed(now=0.0, primitive=id, error=EngineFailed("no")))

    @rule(name=st.sampled_from("abcdefgh"), wait=st.booleans())
    def open_reader(self, name: str, wait: bool) -> None:
        try:
            self.tell(ev.ReaderOpened(now=0.0, variable=name, wait=wait))
            self.readers.append(name)
        except WeftlineError:
            assert not wait

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), served=st.booleans())
    def close_reader(self, data: st.DataObject, served: bool) -> None:
        name = data.draw(st.sampled_from(self.readers))
        self.readers.remove(name)
        self.tell(ev.ReaderClosed(now=0.0, variable=name, served=served))

    @rule(name=st.sampled_from("abcdefgh"))
    def read(self, name: str) -> None:
        with contextlib.suppress(WeftlineError):
            self.tell(ev.VariableRead(now=0.0, variable=name))

    @precondition(lambda self: self.session.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.session.tasks)))
        self.tell(ev.TaskCancelled(now=0.0, task=task))

    @invariant()
    def holds(self) -> None:
        self.session.validate()
        running = {
            id for id, run in self.session.primitives.items() if run.state in ("queued", "running")
        }
        assert running == self.active

    def teardown(self) -> None:
        """The same events give the same actions and the same session."""
        again = ServerSession("s", "t", now=0.0)
        for event, actions in self.heard:
            assert again.handle(event) == actions
            again.validate()
        assert state_of(again) == state_of(self.session)


def state_of(session: ServerSession) -> dict[str, object]:
    """Return all that a session knows, as plain data."""
    execution, plan = session.execution, session.plan
    return {
        "tasks": {id: (run.state, str(run.error)) for id, run in session.tasks.items()},
        "primitives": {
            id: (run.state, run.filling, run.step) for id, run in session.primitives.items()
        },
        "variables": {
            id: (one.state, one.text, one.value, str(one.error), one.reads)
            for id, one in session.variables.items()
        },
        "graph": (session.graph.primitives, session.graph.producer, session.graph.consumers),
        "plan": (plan.depth, plan.objective, plan.group, plan.prefixes, plan.started),
        "criteria": execution.planning.criteria,
        "readers": session.watch.readers,
        "spent": {k: v for k, v in vars(session.spent).items() if k != "budget"},
        "counts": (execution.work_left, execution.under_way, session.ended, session.touched),
        "story": session.story(),
    }


SessionMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestSessionMachine = SessionMachine.TestCase
