"""The session as data: events in, actions out, and every invariant checked after each event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weftline.contract.protocol import Call, Criterion, InOut, Placeholder, Segment
from weftline.errors import (
    AlreadySet,
    Cancelled,
    CyclicGraph,
    EngineFailed,
    NoProducer,
    UnknownVariable,
)
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.primitive import Task
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.session import events as ev
from weftline_server.session.execution import IllegalMove
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes, RunState
from weftline_server.session.variable import PIECE_CHARS, VariableState

USAGE = Usage(prompt_tokens=4, cached_tokens=0, output_tokens=1, started=1.0, filled=1.5)


def call(name: str, reads: str = "", writes: str = "") -> Task:
    """Build a call that reads and writes variables of one letter each, in that order."""
    prompt = tuple(Segment(input=f"i{v}") for v in reads)
    prompt += (Segment(text="x"), *(Segment(output=f"o{v}") for v in writes))
    inputs = (Placeholder(name=f"i{v}", in_out=InOut.IN, semantic_var_id=v) for v in reads)
    outputs = (Placeholder(name=f"o{v}", in_out=InOut.OUT, semantic_var_id=v) for v in writes)
    return task_of(name, Call(name=name, prompt=prompt, placeholders=(*inputs, *outputs)))


class Play:
    """A session under test. `tell` gives it an event and returns its actions; it is validated each
    time. Early fills are noted in `fills`, apart from the other actions.
    """

    def __init__(self, *nodes: Task, detach: bool = False) -> None:
        self.session = ServerSession("s", "t", now=0.0)
        self.fills: list[ev.Fill] = []
        self.first = self.submit(*nodes, detach=detach) if nodes else []

    def tell(self, event: ev.SessionEvent) -> list[ev.Action]:
        actions = self.session.handle(event)
        self.session.validate()
        self.fills += [a for a in actions if isinstance(a, ev.Fill)]
        return [a for a in actions if not isinstance(a, ev.Fill | ev.Ended | ev.Replan)]

    def submit(self, *nodes: Task, detach: bool = False) -> list[ev.Action]:
        return self.tell(ev.TasksSubmitted(now=0.0, tasks=nodes, detach=detach))

    def send(self, call: str, index: int = 0) -> list[ev.Action]:
        return self.tell(ev.PrimitiveSent(now=0.5, primitive=f"{call}/{index}", engine="e"))

    def text(self, call: str, text: str, index: int = 0) -> list[ev.Action]:
        return self.tell(ev.TextGenerated(now=1.6, primitive=f"{call}/{index}", text=text))

    def finish(self, call: str, value: str = "v", index: int = 0) -> list[ev.Action]:
        self.send(call, index)
        finished = ev.PrimitiveFinished(
            now=2.0, primitive=f"{call}/{index}", reason=FinishReason.STOP, usage=USAGE, value=value
        )
        return self.tell(finished)

    def fail(self, call: str) -> list[ev.Action]:
        error = EngineFailed("no luck")
        return self.tell(ev.PrimitiveFailed(now=2.0, primitive=f"{call}/{0}", error=error))

    def open(self, variable: str, wait: bool = False) -> list[ev.Action]:
        return self.tell(ev.ReaderOpened(now=0.0, variable=variable, wait=wait))

    def leave(self, variable: str, served: bool = False) -> list[ev.Action]:
        return self.tell(ev.ReaderClosed(now=3.0, variable=variable, served=served))

    def state(self, call: str) -> RunState:
        return self.session.tasks[call].state


def test_a_call_without_inputs_starts_when_submitted() -> None:
    """No get is needed: a call that can run, runs."""
    assert Play(call("draft", writes="d")).first == [ev.Run("draft/0")]


def test_second_call_starts_when_its_input_arrives() -> None:
    """A summary waits for its draft and starts in the step that sets it."""
    play = Play(call("draft", writes="d"), call("summary", "d", "s"))
    assert play.first == [ev.Run("draft/0")]
    assert play.finish("draft") == [ev.Notify("d"), ev.Run("summary/0")]
    assert play.finish("summary") == [ev.Notify("s")]
    assert play.session.variable("s").value == "v"


def test_a_reduce_waits_for_the_last_map() -> None:
    """Two of its three inputs are not enough."""
    play = Play(*(call(f"m{v}", writes=v) for v in "abc"), call("reduce", "abc", "r"))
    assert play.finish("ma") == [ev.Notify("a")]
    assert play.finish("mc") == [ev.Notify("c")]
    assert play.finish("mb") == [ev.Notify("b"), ev.Run("reduce/0")]


def test_a_waiting_prompt_is_filled_as_it_becomes_known() -> None:
    """Constants are filled at once, inputs part by part as they stream. Then the prompt is run."""
    play = Play(call("a", writes="x"), call("b", writes="y"), call("sum", "xy", "s"))
    assert play.fills == [ev.Fill("sum/0")]
    play.send("a")
    play.text("a", "x" * (PIECE_CHARS - 1))
    assert len(play.fills) == 1
    play.text("a", "x")
    assert play.fills == [ev.Fill("sum/0")] * 2
    play.text("a", "x" * (PIECE_CHARS - 1))
    assert len(play.fills) == 2
    play.text("a", "xx")
    assert len(play.fills) == 3
    play.finish("a")
    assert play.fills == [ev.Fill("sum/0")] * 4
    assert play.finish("b") == [ev.Notify("y"), ev.Run("sum/0")]
    assert len(play.fills) == 4


def test_a_variable_set_by_the_client_starts_its_readers() -> None:
    """An input may be set after the call that needs it was submitted."""
    play = Play(call("joke", "t", "j"))
    assert play.first == []
    topic = ev.VariableSet(now=1.0, variable="t", value="cats")
    assert play.tell(topic) == [ev.Notify("t"), ev.Run("joke/0")]
    with pytest.raises(AlreadySet):
        play.tell(topic)


def test_outputs_of_one_call_follow_each_other() -> None:
    """The second output of a prompt is queued when the first is whole."""
    play = Play(call("both", writes="xy"))
    assert play.finish("both", index=0) == [ev.Notify("x"), ev.Run("both/1")]
    assert play.finish("both", index=1) == [ev.Notify("y")]
    assert play.state("both") is RunState.DONE


def test_an_input_after_the_first_output_does_not_hold_it_up() -> None:
    """`{{output:x}} {{input:y}} {{output:z}}` starts at once and waits for y in the middle."""
    prompt = (Segment(output="x"), Segment(input="y"), Segment(output="z"))
    ways = {"x": InOut.OUT, "y": InOut.IN, "z": InOut.OUT}
    holders = tuple(Placeholder(name=n, in_out=w, semantic_var_id=n) for n, w in ways.items())
    play = Play(task_of("c", Call(name="c", prompt=prompt, placeholders=holders)))
    assert play.first == [ev.Run("c/0")]
    assert play.finish("c", index=0) == [ev.Notify("x")]
    assert play.state("c") is RunState.WAITING
    assert ev.Run("c/1") in play.tell(ev.VariableSet(now=1.0, variable="y", value="1"))


def test_text_is_logged_as_it_comes() -> None:
    """A streaming variable grows. At the end its value is what the transforms made of the text."""
    play = Play(call("a", writes="x"))
    play.send("a")
    assert play.text("a", "Hel") == [ev.Notify("x")]
    assert play.text("a", "lo") == [ev.Notify("x")]
    variable = play.session.variable("x")
    assert (variable.text, variable.state) == ("Hello", VariableState.STREAMING)


def test_a_failure_reaches_all_descendants_at_once() -> None:
    """Every descendant fails with the error of the call that failed first, and with its name."""
    play = Play(call("a", writes="x"), call("b", "x", "y"), call("c", "y", "z"), call("d", "", "w"))
    play.send("a")
    assert play.fail("a") == [
        ev.Stop("a/0"),
        ev.Notify("x"),
        ev.Stop("b/0"),  # the op of the early fill
        ev.Notify("y"),
        ev.Stop("c/0"),
        ev.Notify("z"),
    ]
    error = play.session.variable("z").error
    assert isinstance(error, EngineFailed) and error.call == "a"
    assert play.state("d") is RunState.QUEUED


def test_a_call_on_a_failed_variable_fails_when_submitted() -> None:
    """A graph may grow below a failure. The new call does not wait for a value that cannot come."""
    play = Play(call("a", writes="x"))
    play.fail("a")
    assert play.submit(call("late", "x", "y")) == [ev.Notify("y")]
    assert play.session.variable("y").error is play.session.variable("x").error


def test_news_of_a_stopped_call_is_dropped() -> None:
    """The engine may still have sent events when the call was cancelled."""
    play = Play(call("a", writes="x"))
    play.send("a")
    play.tell(ev.TaskCancelled(now=1.0, task="a"))
    assert play.text("a", "late") == []
    assert play.finish("a") == []
    assert isinstance(play.session.variable("x").error, Cancelled)


def test_a_refused_submit_changes_nothing() -> None:
    """All or none: the valid half of a bad submit is not there afterwards."""
    play = Play(call("a", writes="x"))
    with pytest.raises(CyclicGraph):
        play.submit(call("good", writes="g"), call("loop", "l", "l"))
    assert list(play.session.tasks) == ["a"]
    assert list(play.session.variables) == ["x"]


def test_a_get_without_a_producer() -> None:
    """The get fails at once, even if the gap is further up. With `wait` it waits for a later
    producer.
    """
    play = Play(call("a", "topic", "x"))
    with pytest.raises(UnknownVariable):
        play.open("never")
    with pytest.raises(NoProducer, match=r"'t', which 'x' waits for"):
        Play(call("a", "t", "x")).open("x")
    assert play.open("x", wait=True) == []
    assert play.open("never", wait=True) == []


def test_the_last_reader_that_leaves_cancels_its_calls() -> None:
    """Calls that only its reader needs stop. A branch that another sink needs goes on."""
    play = Play(
        call("shared", writes="s"),
        call("own", writes="o"),
        call("mine", "so", "m"),
        call("other", "s", "t"),
    )
    play.open("m")
    play.leave("m")
    states = {name: play.state(name) for name in ("shared", "own", "mine", "other")}
    assert states == {
        "shared": RunState.QUEUED,
        "own": RunState.CANCELLED,
        "mine": RunState.CANCELLED,
        "other": RunState.WAITING,
    }


def test_a_second_reader_or_detach_keeps_the_work() -> None:
    """An open reader keeps the work. With `detach` no reader is needed."""
    play = Play(call("a", writes="x"))
    play.open("x")
    play.open("x")
    assert play.leave("x") == []
    assert play.leave("x") == [ev.Stop("a/0"), ev.Notify("x")]
    detached = Play(call("a", writes="x"), detach=True)
    detached.open("x")
    assert detached.leave("x") == []


def test_a_reader_may_change_the_objective() -> None:
    """The plan adopts the criterion of a get, and keeps the stricter of two."""
    play = Play(call("a", writes="x"))
    reader = ev.ReaderOpened(now=0.0, variable="x", criteria=Criterion.THROUGHPUT)
    play.tell(reader)
    assert play.session.plan.objective["a/0"] is Criterion.THROUGHPUT
    play.tell(ev.ReaderOpened(now=0.0, variable="x", criteria=Criterion.LATENCY))
    play.tell(reader)
    assert play.session.plan.objective["a/0"] is Criterion.LATENCY


def test_an_ended_primitive_keeps_its_objective() -> None:
    """A criterion reaches what runs, and its engine is told. What has ended is left alone."""
    play = Play(call("a", writes="x"), call("b", "x", "y"))
    bulk = ev.ReaderOpened(now=0.0, variable="y", criteria=Criterion.THROUGHPUT)
    # the objective it is queued with
    assert play.session.plan.objective["a/0"] is Criterion.LATENCY
    play.send("a")
    assert play.session.handle(bulk) == [ev.Replan(("b/0", "a/0"))]
    assert set(play.session.plan.objective.values()) == {Criterion.THROUGHPUT}
    play.finish("a")
    later = replace(bulk, criteria=Criterion.LATENCY)
    assert play.session.handle(later) == [ev.Replan(("b/0",))]
    objective = play.session.plan.objective
    assert (objective["a/0"], objective["b/0"]) == (Criterion.THROUGHPUT, Criterion.LATENCY)


@pytest.mark.parametrize(
    ("queued", "phases"),
    [
        (0.5, {"queue": 0.5, "fill": 4.0, "generate": 2.0, "transform": 0.25}),
        (4.5, {"queue": 0.0, "fill": 0.5, "generate": 2.0, "transform": 0.25}),
        (5.5, {"queue": 0.0, "fill": 0.0, "generate": 2.0, "transform": 0.25}),
    ],
    ids=["in turn", "filled early", "and done before it was ready"],
)
def test_the_wait_after_an_early_fill_is_not_fill_time(
    queued: float, phases: dict[str, float]
) -> None:
    """Its first step was long before. The wait for its input that followed is not fill time."""
    step = PrimitiveTimes(queued)
    assert step.phases is None
    step.usage = replace(USAGE, started=1.0, filled=5.0)
    assert step.phases is None and step.generate_s is None
    step.finished, step.transform_s = 7.0, 0.25
    assert step.phases == phases


def test_closing_settles_everything() -> None:
    """After a close no variable is open, so no get can hang."""
    play = Play(call("a", writes="x"), call("b", "xq", "y"))
    play.send("a")
    actions = play.tell(ev.SessionClosed(now=9.0))
    assert ev.Stop("a/0") in actions
    assert all(v.settled for v in play.session.variables.values())


def test_a_session_tells_its_story() -> None:
    """Each accepted event is a line: its number, seconds since the opening, and its subject."""
    play = Play(call("a", writes="x"))
    play.send("a")
    play.text("a", "y" * 200)
    with pytest.raises(CyclicGraph):
        play.submit(call("loop", "l", "l"))
    lines = [(line.number, line.at_s, line.event, line.about) for line in play.session.story()]
    assert lines == [
        (1, 0.0, "TasksSubmitted", "a"),
        (2, 0.5, "PrimitiveSent", "a/0"),
        (3, 1.6, "TextGenerated", "a/0"),
    ]
    assert play.session.story()[-1].text == "y" * 80


def test_an_illegal_move_is_raised_with_the_story() -> None:
    """An illegal move is our bug: here an ended primitive ends again. The error tells the events
    before it.
    """
    play = Play(call("a", writes="x"))
    play.finish("a")
    play.session.primitives["a/0"].state = RunState.WAITING
    again = ev.PrimitiveFinished(now=3.0, primitive="a/0", reason=FinishReason.STOP, value="w")
    with pytest.raises(IllegalMove, match=r"a a/0: waiting to done(.|\n)*PrimitiveSent +a/0 e"):
        play.session.handle(again)


def test_who_reads_the_tokens_of_a_text() -> None:
    """A client that streams, or one that may still come. Not a prompt, which takes long pieces, and
    not a client that waits for the whole value.
    """
    play = Play(call("a", writes="x"), call("b", reads="x", writes="y"), call("c", writes="z"))
    reads = play.session.watch.reads_tokens
    assert [reads(v) for v in "xyz"] == [False, True, True]
    whole = ev.TasksSubmitted(now=0.0, tasks=(call("d", writes="v"),), whole=("v",))
    play.tell(whole)
    assert not reads("v")
    play.tell(ev.ReaderOpened(now=0.0, variable="y"))
    play.tell(ev.ReaderOpened(now=0.0, variable="x", streams=True))
    assert [reads(v) for v in "xyz"] == [True, False, True]
