"""An agent whose tools the client runs: its turns are joined, and the tools are on the path."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.test_openai_tools import CALL, SAYS, USER, WEATHER, chat
from weftline_engine.pretend.null import LatencyProfile
from weftline_server.observe.critical import critical_view
from weftline_server.observe.follower import Follower
from weftline_server.observe.savings import StepWork, saved_without

TOOL_S = 0.15
TWO = replace(SAYS, script=(SAYS.script[0], ("", CALL + CALL)))  # two calls in one answer


async def turn(server: Server, session: str, *messages: Any) -> Any:
    body = {"tools": [WEATHER], "session_id": session}
    return (await chat(server, *messages, **body))["choices"][0]["message"]


async def agent(server: Server) -> str:
    """A session of two turns, between which the client takes TOOL_S."""
    id = await server.session()
    asks = await turn(server, id, USER)
    await asyncio.sleep(TOOL_S)
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "warm"} for one in asks["tool_calls"]
    ]
    said = await turn(server, id, USER, asks, *results)
    assert said["content"] == "It is sunny."
    return id


async def graph_of(server: Server, id: str) -> Any:
    return (await server.http.get(f"/v1/session/{id}/graph")).json()


async def test_turns_are_joined_through_the_tools_between_them(serve: Serve) -> None:
    """The client names no variable: the id of a tool's call is enough. The path has the first turn,
    both tools and the second turn, and their time is no wait for the client.
    """
    server = await serve(TWO)
    began = time.monotonic()
    graph = await graph_of(server, await agent(server))
    lasted = time.monotonic() - began
    first, second = [one["call_id"] for one in graph["calls"]]
    answer = graph["calls"][0]["outputs"][0]
    assert graph["edges"] == [{"from": first, "to": second, "semantic_var_id": answer}]
    tools = graph["tools"]
    assert [(one["name"], one["state"], one["asked_by"], one["read_by"]) for one in tools] == [
        ("get_weather", "done", first, second)
    ] * 2
    assert all(TOOL_S <= one["ended_s"] - one["began_s"] < lasted for one in tools)
    critical = graph["critical"]
    assert critical["tasks"] == [first, *(one["tool_id"] for one in tools), second]
    assert critical["seconds"]["tools"] >= TOOL_S > critical["seconds"].get("client", 0.0)
    assert "of the time was waiting for tools" in critical["sentence"]
    assert "shortening 'get_weather' helps most" in critical["sentence"]


async def test_a_session_says_that_it_waits_for_a_tool(serve: Serve) -> None:
    """After an answer that calls one; then for its client, and at last it is done."""
    server = await serve(SAYS)

    async def phases() -> list[str]:
        rows = (await server.http.get("/v1/sessions")).json()["sessions"]
        return [row["phase"] for row in rows]

    id = await server.session()
    asks = await turn(server, id, USER)
    assert await phases() == ["waiting for a tool"]
    result = {"role": "tool", "tool_call_id": asks["tool_calls"][0]["id"], "content": "warm"}
    await turn(server, id, USER, asks, result)
    assert await phases() == ["waiting for the client"]
    await server.http.delete(f"/v1/session/{id}")
    assert await phases() == ["done"]


async def test_a_follower_is_told_of_tools(serve: Serve) -> None:
    """A tool runs from the answer on, and is done with the next turn. One whose result never comes
    is cancelled with its session.
    """
    server = await serve(SAYS)
    id = await server.session()
    session = server.service.registry.find("local", id)
    follower = Follower(session)

    def told() -> list[str]:
        changes = list(follower.changes(time.monotonic()))
        return [tool["state"] for one in changes for tool in one.get("tools", ())]

    asks = await turn(server, id, USER)
    assert told() == ["running"] and told() == []
    result = {"role": "tool", "tool_call_id": asks["tool_calls"][0]["id"], "content": "warm"}
    await turn(server, id, USER, asks, result)
    assert told() == ["done"] and told() == []
    await turn(server, id, USER)
    assert told() == ["done", "running"]
    server.service.close(session)
    assert told() == ["done", "cancelled"]


async def test_a_tool_is_shown_with_its_arguments_and_its_result(serve: Serve) -> None:
    """As a step of the client, under the id that the graph has."""
    server = await serve(SAYS)
    id = await agent(server)
    [tool] = (await graph_of(server, id))["tools"]
    shown = (await server.http.get(f"/v1/session/{id}/call/{tool['tool_id']}")).json()
    assert (shown["kind"], shown["resource"], shown["state"]) == ("tool", "the client", "done")
    texts = {one["role"]: one["text"] for one in shown["segments"]}
    assert texts == {"arguments": '{"city": "Rome"}', "result": "warm"}


async def test_a_session_at_a_glance(serve: Serve) -> None:
    """Its name, what the user asked, and the last answer; an answer that is being written has its
    text so far.
    """
    server = await serve(SAYS)
    id = await agent(server)
    session = server.service.registry.find("local", id)
    [glance] = [one["glance"] for one in Follower(session).changes(0.0) if "glance" in one]
    told = {key: glance[key] for key in ("name", "input", "output", "phase", "calls")}
    assert told == {
        "name": USER["content"],
        "input": USER["content"],
        "output": "It is sunny.",
        "phase": "waiting for the client",
        "calls": 2,
    }


async def test_a_text_is_told_while_it_is_written(serve: Serve) -> None:
    """The end of each text that has grown since the last look."""
    server = await serve(replace(SLOW, latency=LatencyProfile(step_s=0.05)))
    id = await server.session()
    await server.submit(id, call("reply", "Write {{output:x}}", x="x"))
    session = server.service.registry.find("local", id)
    follower = Follower(session)
    reading = asyncio.create_task(server.get(id, "x"))
    told: list[str] = []
    while not reading.done():
        await asyncio.sleep(0.02)
        texts = [one["texts"] for one in follower.changes(0.0) if "texts" in one]
        told += [text for one in texts for text in one.values()]
    assert len(told) > 2 and len(set(told)) == len(told)
    assert all("a b c d e f g h".startswith(text) for text in told)


async def test_a_result_of_an_unknown_call_joins_nothing(serve: Serve) -> None:
    """An id that no answer of the session had is a message like any other."""
    server = await serve(SAYS)
    id = await server.session()
    await turn(server, id, USER, {"role": "tool", "tool_call_id": "c9", "content": "warm"})
    graph = await graph_of(server, id)
    assert (graph["edges"], graph["tools"]) == ([], [])


async def test_a_session_is_named_by_the_first_words_of_its_user(serve: Serve) -> None:
    """Where a prompt is all input, its words are those of the value, never `{messages}`."""
    server = await serve()
    said = [{"role": "system", "content": "Be brief."}, {**USER, "content": "Where is Rome?"}]
    given = {"name": "messages", "in_out": "in", "value": said}
    for value, name in ((given, "Where is Rome?"), ({**given, "value": 7}, "{messages}")):
        prompt = {"prompt": "{{input:messages}}{{output:x}}", "name": "ask"}
        out = {"name": "x", "in_out": "out"}
        body = {"calls": [{**prompt, "placeholders": [value, out]}]}
        id = await server.session()
        answer = await server.http.post("/v1/submit", json={"session_id": id, **body})
        assert answer.status_code == 200, answer.text
        rows = (await server.http.get("/v1/sessions")).json()["sessions"]
        assert rows[0]["name"] == name


SLOW = replace(
    SAYS, script=(("a b c", "so 2"), ("", "a b c d e f g h")), latency=LatencyProfile(step_s=0.01)
)


@pytest.mark.parametrize("equal", [True, False])
async def test_one_of_equal_siblings_saves_nothing(equal: bool, serve: Serve) -> None:
    """Eleven calls beside the longest one take as long. So the join is what helps, unless the calls
    are the items of one map, which one change shortens.
    """
    server = await serve(SLOW)
    id = await server.session()
    names = [f"part {n}" if equal else f"part[{n}]" for n in range(12)]
    out = [{"in_out": "out", "semantic_var_id": f"v{n}"} for n in range(12)]
    calls = [call(name, "Write {{output:x}}", x=one) for name, one in zip(names, out, strict=True)]
    reads = {f"v{n}": f"v{n}" for n in range(12)}
    prompt = "".join(f"{{{{input:v{n}}}}}" for n in range(12)) + "{{output:z}}"
    await server.submit(id, *calls, call("join", prompt, z="z", **reads))
    assert (await server.get(id, "z")).status_code == 200
    sentence = critical_view(server.service.registry.find("local", id))["sentence"]
    assert f"shortening {'join' if equal else 'part'!r} helps most" in sentence


def test_the_savings_of_a_step_stop_at_its_slack() -> None:
    """`a` takes 5 s beside `b` with 4 s, so it saves 1 s; the question before both saves all."""
    works = [
        StepWork("q", "ask", 2.0, 2.0, ()),
        StepWork("b", "b", 6.0, 4.0, ("q",)),
        StepWork("a", "a", 7.0, 5.0, ("q",)),
        StepWork("z", "join", 8.0, 1.0, ("a", "b")),
    ]
    saved = {step: saved_without(works, step) for step in ("ask", "a", "b", "join", "none")}
    assert saved == {"ask": 2.0, "a": 1.0, "b": 0.0, "join": 1.0, "none": 0.0}
