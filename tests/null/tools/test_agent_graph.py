"""An agent is a graph: its turns and tools are tasks, and it stands where any step may stand."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.tools.conftest import config
from tests.null.tools.test_tool_runs import PACE, ask, called, until
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline.contract.tools import ServedTool
from weftline.errors import EngineFailed
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import lower_call
from weftline_server.lowering.kinds.turn import AgentSetup, as_turn
from weftline_server.prompt.answer import CallState, WrittenCall
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState


def script(folder: Path) -> tuple[tuple[str, str], ...]:
    note = called("note", path=str(folder / "notes"))
    return (
        ("waited", "I waited."),
        ("noted", "It is noted."),
        ('"found": "Rome', "Rome is found."),
        ('"found": "Oslo', "Oslo is found."),
        ("#Rome", called("look_up", query="Rome")),
        ("#Oslo", "I look. " + called("look_up", query="Oslo") + "and then " * 20),
        ("#note", note),
        ("#forever", called("add", a=1, b=1)),
        ("#mine", called("mine")),
        ("#wait", called("wait_for", path=str(folder / "end"))),
        ("summary of", "A summary."),
        ("#plain", "Nothing to call."),
        ("#slow", "and so on " * 40),
        ("#list", "Rome\nplain " + "and so on " * 40),
    )


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> Server:
    begun = BegunCalls()
    engine = NullConfig(mode=NullMode.SCRIPT, script=script(tmp_path), latency=PACE)
    return await serve(
        engine, ServerConfig(), None, {"tool:some": lambda: ToolEngine(config(), begun)}
    )


def turn(*content: dict[str, Any], **inputs: str) -> dict[str, Any]:
    """The call of an agent whose user says this."""
    holders = [
        {"name": name, "in_out": "in", "semantic_var_id": var} for name, var in inputs.items()
    ]
    return {
        "name": "ask",
        "prompt": [
            {"role": "user", "content": list(content)},
            {"role": "assistant", "content": [{"output": "answer"}]},
        ],
        "placeholders": [*holders, {"name": "answer", "in_out": "out"}],
    }


def agent(*content: dict[str, Any], out: str = "a", most: int = 16, **inputs: str) -> Any:
    step = {"kind": "agent", "name": "helper", "call": turn(*content, **inputs), "most": most}
    return step if not out else {**step, "out": out}


async def run(server: Server, *steps: Any, calls: Any = (), get: list[str]) -> dict[str, Any]:
    """The values of a submit, its session, and the graph."""
    body = {"calls": list(calls), "steps": list(steps), "get": get, "graph": True}
    answer = await server.http.post("/v1/submit", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(graph: dict[str, Any]) -> Counter[str]:
    return Counter(one["name"] for part in ("calls", "steps") for one in graph[part])


async def test_an_agent_is_a_step_of_a_submit(server: Server) -> None:
    """It reads a variable, another call reads its value, and the graph has its turns and tools,
    which belong to it."""
    first = call("name", "#plain {{output:x}}", x="x")
    last = call("last", "summary of {{input:a}}{{output:y}}", a="a", y="y")
    step = agent({"text": "#Oslo "}, {"input": "x"}, x="x")
    found = await run(server, step, calls=[first, last], get=["a", "y"])
    assert found["values"] == {"a": "Oslo is found.", "y": "A summary."}
    graph = found["graph"]
    assert names(graph) == Counter(name=1, last=1, ask=2, look_up=1, helper=1)
    [owner] = [one["step_id"] for one in graph["steps"] if one["name"] == "helper"]
    owned = [one for part in ("calls", "steps") for one in graph[part] if one["owner"] == owner]
    assert sorted(one["name"] for one in owned) == ["ask", "ask", "look_up"]
    [tool] = [one for one in graph["steps"] if one["name"] == "look_up"]
    [early, late] = [one for one in graph["calls"] if one["name"] == "ask"]
    # Of the turn forty words come behind the call.
    assert tool["queued_s"] + 40 * PACE.step_s < early["ended_s"] < late["ended_s"]
    assert late["inputs"] == ["x", *tool["outputs"]]


async def test_agents_run_for_all_items_of_a_list(server: Server) -> None:
    """One agent for each item, all at the same time; the list has their answers in its order."""
    body = {"steps": [agent({"text": "#"}, {"input": "item"}, out="found", item="item")]}
    each = {
        "kind": "each",
        "over": {"value": ["Rome", "Oslo", "plain"]},
        "body": body,
        "collect": {"found": "all"},
    }
    found = await run(server, each, get=["all"])
    assert found["values"]["all"] == ["Rome is found.", "Oslo is found.", "Nothing to call."]
    assert names(found["graph"])["look_up"] == 2


@pytest.mark.parametrize("kind", ["note", "look"])
async def test_an_agent_is_a_side_of_a_branch(server: Server, tmp_path: Path, kind: str) -> None:
    """Only the agent of the side that is taken runs: the other's tool has an effect, or the other
    writes nothing."""
    branch = {
        "kind": "branch",
        "on": {"value": kind},
        "cases": [{"when": {"op": "equals", "value": "note"}, "take": "noted"}],
        "default": "found",
        "out": "answer",
    }
    sides = [agent({"text": "#note"}, out="noted"), agent({"text": "#Rome"}, out="found")]
    found = await run(server, branch, *sides, get=["answer"])
    wanted = {"note": "It is noted.", "look": "Rome is found."}
    assert found["values"]["answer"] == wanted[kind]
    assert (tmp_path / "notes").exists() is (kind == "note")
    counts = names(found["graph"])
    assert (counts["ask"], counts["note"], counts["look_up"]) == (
        2,
        int(kind == "note"),
        int(kind == "look"),
    )


def naming(step: Any, tool: str) -> Any:
    """The agent, whose call names one tool."""
    named = [{"type": "function", "function": {"name": tool}}]
    return {**step, "call": {**step["call"], "tools": named}}


@pytest.mark.parametrize("taken", [False, True])
async def test_agents_in_a_list_wait_for_a_branch(server: Server, taken: bool) -> None:
    """The branch is decided by a text that takes a while. Until then no model writes for the list
    on its side, although its tools change nothing."""
    decides = call("decide", "#slow {{output:kind}}", kind="kind")
    branch = {
        "kind": "branch",
        "on": {"var": "kind"},
        "cases": [{"when": {"op": "contains", "value": "and" if taken else "or"}, "take": "all"}],
        "default": "none",
        "out": "answer",
    }
    one = naming(agent({"text": "#"}, {"input": "item"}, out="a", item="item"), "look_up")
    each = {
        "kind": "each",
        "over": {"value": ["Rome"]},
        "body": {"steps": [one]},
        "collect": {"a": "all"},
    }
    none = {"kind": "text", "parts": [{"value": "nothing"}], "out": "none"}
    found = await run(server, branch, each, none, calls=[decides], get=["answer"])
    assert found["values"]["answer"] == (["Rome is found."] if taken else "nothing")
    assert names(found["graph"])["ask"] == (2 if taken else 0)
    if taken:
        first, decided = began(found["graph"], "decide")
        assert first >= decided


@pytest.mark.parametrize(("tool", "early"), [("look_up", True), ("note", False)])
async def test_an_agent_begins_while_its_list_is_written(
    server: Server, tool: str, early: bool
) -> None:
    """Where a tool changes something, it waits for the end: the list may not have the item then."""
    writes = call("list", "#list {{output:list}}", list="list")
    one = naming(agent({"text": "#"}, {"input": "item"}, out="a", item="item"), tool)
    each = {
        "kind": "each",
        "over": {"var": "list", "transforms": [{"op": "line_list"}]},
        "body": {"steps": [one]},
        "collect": {"a": "all"},
    }
    found = await run(server, each, calls=[writes], get=["all"])
    said = "Rome is found." if early else ""
    assert found["values"]["all"] == [said, "Nothing to call."]
    first, written = began(found["graph"], "list")
    assert (first < written) is early


def began(graph: dict[str, Any], other: str) -> tuple[float, float]:
    """When the first turn of an agent was queued, and when another call ended."""
    turns = [one["steps"][0]["queued_s"] for one in graph["calls"] if one["name"] == "ask"]
    [ended] = [one["ended_s"] for one in graph["calls"] if one["name"] == other]
    return min(turns), ended


async def test_a_request_runs_a_tool_with_effects_beside_an_undecided_branch(
    server: Server, tmp_path: Path
) -> None:
    """Nobody reads its last answer but the request: its tool is needed all the same."""
    session = await server.session()
    branch = {
        "kind": "branch",
        "on": {"var": "unset"},
        "cases": [{"when": {"op": "equals", "value": 1}, "take": "unset"}],
        "default": "unset",
        "out": "answer",
    }
    await server.submit(session, steps=[branch])
    answer = await ask(server, "#note", session_id=session)
    assert answer["choices"][0]["message"]["content"] == "It is noted."
    assert (tmp_path / "notes").read_text() == "noted\n"


async def test_an_agent_is_the_body_of_a_loop(server: Server) -> None:
    """Each round asks again. The loop ends when the answer says so."""
    body = {"steps": [agent({"text": "#"}, {"input": "say"}, out="said", say="say")]}
    loop = {
        "kind": "loop",
        "carry": {"say": "begin"},
        "next": {"say": "said"},
        "body": body,
        "until": {"on": "said", "when": {"op": "contains", "value": "found"}},
        "most": 3,
        "out": "end",
    }
    begin = {"kind": "text", "parts": [{"value": "Rome"}], "out": "begin"}
    assert (await run(server, begin, loop, get=["end"]))["values"] == {"end": "Rome is found."}


async def test_an_agent_ends_after_its_most_turns(server: Server) -> None:
    """The graph says so. A call of a tool that the server does not have ends it at once."""
    found = await run(server, agent({"text": "#forever"}, most=3), get=["a"])
    assert found["values"] == {"a": ""}
    [step] = [one for one in found["graph"]["steps"] if one["name"] == "helper"]
    assert (step["finish_reason"], names(found["graph"])["ask"]) == ("limit", 3)
    found = await run(server, agent({"text": "#mine"}), get=["a"])
    [step] = [one for one in found["graph"]["steps"] if one["name"] == "helper"]
    assert (step["finish_reason"], names(found["graph"])["ask"]) == ("stop", 1)


async def test_an_agent_runs_the_tools_that_its_call_names(server: Server, tmp_path: Path) -> None:
    """The model calls a tool of the server that it was not told of: the run ends, and nothing has
    happened."""
    step = agent({"text": "#note"})
    step["call"]["tools"] = [{"type": "function", "function": {"name": "add"}}]
    found = await run(server, step, get=["a"])
    assert (found["values"], names(found["graph"])["ask"]) == ({"a": ""}, 1)
    assert not (tmp_path / "notes").exists()


async def test_an_agent_that_is_cancelled_ends_its_tools(server: Server, tmp_path: Path) -> None:
    """What reads it fails with it, and nothing of it runs on."""
    session = await server.session()
    answer = await server.submit(session, steps=[agent({"text": "#wait"})])
    assert answer.status_code == 200, answer.text
    await until(tmp_path / "end.begun")
    await server.http.delete(f"/v1/session/{session}/variable/a")
    failed = await server.get(session, "a")
    assert failed.json()["error"]["type"] == "Cancelled"
    graph = await server.graph(session)
    states = {one["name"]: one["state"] for part in ("calls", "steps") for one in graph[part]}
    assert states["helper"] == states["wait_for"] == "cancelled"


async def test_nothing_turns_while_a_tool_runs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop sleeps: in 0.3 s of a tool it turns for its timers alone. A wait that asks
    again in each turn would turn some ten thousand times."""
    running = asyncio.create_task(run(server, agent({"text": "#wait"}), get=["a"]))
    await until(tmp_path / "end.begun")
    loop: Any = asyncio.get_running_loop()
    turns, once = 0, loop._run_once

    def counted() -> None:
        nonlocal turns
        turns += 1
        once()

    monkeypatch.setattr(loop, "_run_once", counted)
    await asyncio.sleep(0.3)
    monkeypatch.undo()
    (tmp_path / "end").touch()
    assert (await running)["values"] == {"a": "I waited."}
    assert turns < 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"most": 17}, "most must be in 1 to 16"),
        ({"served": [{"name": "add", "engine": "x"}]}, "the server fills in 'served'"),
        (
            {"call": call("c", "text {{output:x}}", x={"in_out": "out"})},
            "a prompt of messages, and the last",
        ),
        ({"call": {**turn({"text": "x"}), "model": "nobody"}}, "nobody"),
    ],
)
async def test_what_an_agent_cannot_be_is_refused(
    server: Server, change: dict[str, Any], said: str
) -> None:
    """The error says what to do, also where the agent stands in a body."""
    step = {**agent({"text": "x"}), **change}
    each = {
        "kind": "each",
        "over": {"value": [1]},
        "body": {"steps": [step]},
        "collect": {"a": "all"},
    }
    for sent in (step, each):
        answer = await server.http.post("/v1/submit", json={"steps": [sent]})
        assert answer.status_code in (400, 404, 422) and said in answer.text, answer.text


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_turn_that_fails_ends_its_tools_or_is_written_again(is_taken: bool) -> None:
    """Its engine has died. Another attempt takes over the tool of an equal call, unless a client
    has a part of the answer: then the tool ends with the turn."""
    session = ServerSession("s", "", 0.0)
    holder = Placeholder(name="answer", in_out=InOut.OUT)
    said = Message(role="user", content=(Segment(text="x"),))
    prompt = (said, Message(role="assistant", content=(Segment(output="answer"),)))
    call = Call(name="ask", prompt=prompt, placeholders=(holder,))
    run = AgentSetup(id="c", served=(ServedTool(name="look", engine="t", effects="none"),))
    item = {"id": "1", "name": "look", "arguments": "{}"}
    again = WrittenCall("2", "look", "{}", CallState.SEALED).to_item()

    def tell(event: ev.SessionEvent) -> None:
        session.handle(event)
        session.validate()

    tell(ev.TasksSubmitted(now=0.0, tasks=(as_turn(lower_call(call, "m", "c"), run, KINDS),)))
    tell(ev.PrimitiveSent(now=0.0, primitive="c/0", engine="e"))
    tell(ev.ItemsCame(now=0.0, primitive="c/0", offset=0, items=(item,)))
    assert session.tasks["c.t0"].state is RunState.QUEUED
    error = EngineFailed("it died")
    tell(ev.PrimitiveFailed(now=1.0, primitive="c/0", error=error, is_taken=is_taken))
    assert session.tasks["c.t0"].state is (RunState.SKIPPED if is_taken else RunState.QUEUED)
    assert list(session.tasks) == ["c", "c.t0", *([] if is_taken else ["cx2"])]
    if not is_taken:
        tell(ev.ItemsCame(now=2.0, primitive="cx2/0", offset=0, items=(again,)))
        assert list(session.tasks) == ["c", "c.t0", "cx2"]


async def test_an_agent_needs_a_server_with_tools(serve: Serve) -> None:
    """The error says which table to add."""
    plain = await serve()
    answer = await plain.http.post("/v1/submit", json={"steps": [agent({"text": "x"})]})
    assert answer.status_code == 400 and "[[tool]]" in answer.json()["error"]["message"]
