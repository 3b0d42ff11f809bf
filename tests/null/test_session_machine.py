"""A session under random events keeps its invariants, and runs just what it says it runs."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weftline.errors import EngineFailed, WeftlineError
from weftline.protocol import Call, InOut, Placeholder, Segment
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.graph import Node
from weftline_server.session import events as ev
from weftline_server.session.session import Session

USAGE = Usage(prompt_tokens=1, cached_tokens=0, output_tokens=1, started=0.0, filled=0.0)
NAMES = st.text("abcdefgh", min_size=1, max_size=3)


class SessionMachine(RuleBasedStateMachine):
    """Plays clients and engines; `active` are the primitives that the session asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session("s", "t", now=0.0)
        self.active: set[tuple[str, int]] = set()
        self.readers: list[str] = []
        self.count = 0

    def tell(self, event: ev.SessionEvent) -> None:
        for action in self.session.handle(event):
            match action:
                case ev.Run(call, index):
                    assert (call, index) not in self.active, "run twice"
                    self.active.add((call, index))
                case ev.Stop(call, index):
                    self.active.discard((call, index))

    @rule(reads=NAMES, writes=NAMES, detach=st.booleans())
    def submit(self, reads: str, writes: str, detach: bool) -> None:
        self.count += 1
        reads, writes = "".join(set(reads)), "".join(set(writes))
        prompt = (*(Segment(input=f"i{v}") for v in reads), Segment(text="t"))
        prompt += tuple(Segment(output=f"o{v}") for v in writes)
        holders = [Placeholder(name=f"i{v}", in_out=InOut.IN, semantic_var_id=v) for v in reads]
        holders += [Placeholder(name=f"o{v}", in_out=InOut.OUT, semantic_var_id=v) for v in writes]
        made = Call(name=f"n{self.count}", prompt=prompt, placeholders=tuple(holders))
        before = (set(self.session.calls), set(self.session.variables))
        event = ev.CallsSubmitted(now=0.0, nodes=(Node(f"c{self.count}", made),), detach=detach)
        try:
            self.tell(event)
        except WeftlineError:
            assert before == (set(self.session.calls), set(self.session.variables))

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
        call, index = data.draw(st.sampled_from(sorted(self.active)))
        self.active.discard((call, index))
        self.tell(ev.PrimitiveSent(now=0.0, call=call, index=index, engine="e"))
        if good:
            done = ev.PrimitiveFinished(
                now=0.0, call=call, index=index, reason=FinishReason.STOP, usage=USAGE, value="v"
            )
            self.tell(done)
        else:
            error = EngineFailed("no")
            self.tell(ev.PrimitiveFailed(now=0.0, call=call, index=index, error=error))

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

    @invariant()
    def holds(self) -> None:
        self.session.validate()
        running = {
            (id, run.index)
            for id, run in self.session.calls.items()
            if run.state in ("queued", "running")
        }
        assert running == self.active


SessionMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestSessionMachine = SessionMachine.TestCase
