"""An each over a list that a call still writes: the first item runs before the second is there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from tests.null.steps.wire import each, run
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.contract.steps import Body, Each, FunctionStep, Source, Step
from weftline_engine.api import FinishReason
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.graph.primitive import Flow, Task
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import lower_call
from weftline_server.passes import PASSES
from weftline_server.session import events as ev
from weftline_server.session.draft import Draft
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState

ASK = {"calls": [call("ask", "<{{input:item}}>{{output:answer}}", item="item", answer="answer")]}
SPLIT = {"var": "subs", "transforms": [{"op": "line_list"}]}
SLOW = NullConfig(latency=LatencyProfile(step_s=0.02))


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_an_item_runs_when_it_closes(serve: Serve, count: int) -> None:
    """The first item is queued before the list ends."""
    server = await serve(SLOW)
    lines = "\n".join(f"item {n}" for n in range(count))
    plan = call("plan", f"{lines}\nlast one{{{{output:subs}}}}", subs="subs")
    step = {**each("subs", ASK, {"answer": "answers"}, name="subs"), "over": SPLIT}
    answer = await run(server, step, calls=[plan], get=["answers"])
    assert answer["values"]["answers"] == [f"<item {n}>" for n in range(count)] + ["<last one>"]
    calls = {one["name"]: one for one in answer["graph"]["calls"]}
    first, last = (calls[f"subs[{n}].ask"]["steps"] for n in (0, count))
    written = calls["plan"]["steps"]
    assert _at(first, "queued") < _at(written, "finished")
    assert _at(last, "queued") >= _at(written, "finished"), "the last line is not closed before"


async def test_a_long_list_grows_the_graph_a_few_times(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One growth for each of 640 items would plan 640 times what gathers up to 640 results."""
    growths: list[int] = []
    handle = ServerSession.handle

    def counted(session: ServerSession, event: ev.SessionEvent, draft: Draft | None = None) -> Any:
        if isinstance(event, ev.ItemsCame):
            growths.append(len(event.items))
        return handle(session, event, draft)

    monkeypatch.setattr(ServerSession, "handle", counted)
    server = await serve(NullConfig())
    items = [f"i{n}" for n in range(640)]
    output = {"in_out": "out", "semantic_var_id": "subs", "sampling": {"max_tokens": 1000}}
    plan = call("plan", "\n".join(items) + "{{output:subs}}", subs=output)
    step = {**each("subs", ASK, {"answer": "answers"}, max_items=640), "over": SPLIT}
    answer = await run(server, step, calls=[plan], get=["answers"])
    assert answer["values"]["answers"] == [f"<{item}>" for item in items]
    assert growths[:64] == [1] * 64, "the first items start one by one"
    assert 64 < len(growths) <= 64 * (1 + math.log2(640 / 64))


def _at(steps: list[dict[str, Any]], name: str) -> float:
    found = steps[0][f"{name}_s"]
    assert isinstance(found, float)
    return found


def ask(name: str, out: str, item: str = "item") -> Call:
    holders = (
        Placeholder(name="i", in_out=InOut.IN, semantic_var_id=item),
        Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=out),
    )
    return Call(name=name, prompt=(Segment(input="i"), Segment(output="o")), placeholders=holders)


def step(*steps: Step) -> Each:
    over = Source(var="subs", transforms=({"op": "line_list"},))
    return Each(over=over, body=Body(calls=(ask("ask", "a"),), steps=steps), collect={"a": "all"})


def lower(step: Step, resource: str = "", id: str = "e") -> Task:
    return KINDS.lower_step(step, resource, id)


class Story:
    """A session with a call that writes a list, and an each over it."""

    def __init__(self) -> None:
        self.session = ServerSession("s", "", 0.0)
        tasks = (lower_call(ask("plan", "subs", "topic"), "", "p"), lower(step()))
        self.tell(ev.TasksSubmitted(now=0.0, tasks=tasks))

    def tell(self, event: ev.SessionEvent) -> None:
        self.session.handle(event)
        self.session.validate()

    def end(self, primitive: str, value: Any) -> None:
        stop = FinishReason.STOP
        self.tell(ev.PrimitiveSent(now=1.0, primitive=primitive, engine="null"))
        self.tell(ev.PrimitiveFinished(now=1.0, primitive=primitive, reason=stop, value=value))

    def came(self, offset: int, *items: str) -> None:
        self.tell(ev.ItemsCame(now=1.0, primitive="e/0", offset=offset, items=items))

    def states(self) -> dict[str, RunState]:
        """The state of each item's call, by its task."""
        return {id: run.state for id, run in self.session.tasks.items() if ".c" in id}

    def text(self, task: str) -> Any:
        return self.session.variables[f"{task.removesuffix('.c0')}.item"].value


def test_an_item_that_is_not_in_the_list_is_skipped() -> None:
    """The text was written again by another engine: it says something else from item 1 on."""
    story = Story()
    story.tell(ev.VariableSet(now=0.0, variable="topic", value="t"))
    story.came(0, "a", "b")
    story.came(2, "c")
    story.end("p/0", "a\nx")
    story.end("e/0", ["a", "x"])
    queued, skipped = RunState.QUEUED, RunState.SKIPPED
    assert story.states() == {
        "e.0.c0": queued,
        "e.1.c0": skipped,
        "e.2.c0": skipped,
        "e.1x1.c0": queued,
    }
    assert [story.text(one) for one in ("e.0.c0", "e.1x1.c0")] == ["a", "x"]
    for task, value in (("e.0.c0", "A"), ("e.1x1.c0", "X")):
        story.end(f"{task}/0", value)
    story.end("e/1", ["A", "X"])
    assert story.session.variables["all"].value == ["A", "X"]


def test_a_list_that_is_shorter_or_longer_than_what_came() -> None:
    """No item runs twice; what is too much is skipped, what is missing runs."""
    short, long = Story(), Story()
    for story in (short, long):
        story.tell(ev.VariableSet(now=0.0, variable="topic", value="t"))
        story.came(0, "a", "b")
        story.end("p/0", "")
    short.end("e/0", ["a"])
    long.end("e/0", ["a", "b", "c"])
    assert short.states() == {"e.0.c0": RunState.QUEUED, "e.1.c0": RunState.SKIPPED}
    assert list(long.states().values()) == [RunState.QUEUED] * 3
    assert [read.variable for read in short.session.graph.primitives["e/1"].reads] == ["e.0.a"]


def test_only_a_body_without_effects_takes_items_early() -> None:
    """An item that is not in the list in the end must not have changed anything."""
    free, once = (
        FunctionStep(function="f", effects="none", out="x"),
        FunctionStep(function="f", effects="once", out="x"),
    )
    flows = {}
    for name, steps in {"calls": (), "free": (free,), "once": (once,)}.items():
        session = ServerSession("s", "", 0.0)
        call = lower_call(ask("plan", "subs", "topic"), "", "p")
        session.handle(ev.TasksSubmitted(now=0.0, tasks=(call, lower(step(*steps)))))
        flows[name] = session.graph.primitives["e/0"].reads[0].flow
    assert flows == {"calls": Flow.ITEMS, "free": Flow.ITEMS, "once": Flow.WHOLE}
    assert "pipeline" in PASSES
