"""Cancelling a call, a variable or a session ends everything that depends on it, and
nothing else.
"""

from __future__ import annotations

import asyncio

from tests.null.asgi import Serve, Server, call, running
from tests.waits import until
from weftline_engine.pretend.null import LatencyProfile, NullConfig

SLOW = NullConfig(latency=LatencyProfile(step_s=0.02))


async def states(server: Server, session: str) -> dict[str, str]:
    return {c["name"]: c["state"] for c in (await server.graph(session))["calls"]}


async def test_cancelling_a_call_cancels_its_descendants(serve: Serve) -> None:
    """Its readers and those of its descendants get an error at once. Its sibling goes on."""
    server = await serve(SLOW)
    session = await server.session()
    answer = await server.submit(
        session,
        call("top", "one two three four{{output:a}}", a="a"),
        call("below", "{{input:a}}!{{output:b}}", a="a", b="b"),
        call("beside", "one two{{output:c}}", c="c"),
    )
    top = answer.json()["calls"][0]["call_id"]
    waiting = asyncio.create_task(server.get(session, "b"))
    await until(lambda: server.waiting)
    path = f"/v1/session/{session}/call/{top}"
    for _ in range(2):  # It had already ended before the second cancel.
        gone = await server.http.delete(path)
        assert (gone.status_code, gone.json()) == (200, {"call_id": top, "state": "cancelled"})
    error = (await waiting).json()["error"]
    assert (error["type"], error["call"]) == ("Cancelled", "top")
    assert (await server.get(session, "c")).json()["value"] == "one two"
    assert await states(server, session) == {
        "top": "cancelled",
        "below": "cancelled",
        "beside": "done",
    }
    assert running(server.driver.dispatcher) == {"null": (0, 0)}
    unknown = await server.http.delete(f"/v1/session/{session}/call/{top}x")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "UnknownCall")


async def test_a_variable_is_cancelled(serve: Serve) -> None:
    """A variable's producer is cancelled with it. Readers of a variable that a client was to set
    get an error.
    """
    server = await serve(SLOW)
    session = await server.session()
    await server.submit(
        session,
        call("make", "one two three{{output:a}}", a="a"),
        call("wait", "{{input:t}}!{{output:b}}", t="topic", b="b"),
    )
    for variable in ("a", "topic"):
        path = f"/v1/session/{session}/variable/{variable}"
        gone = await server.http.delete(path)
        assert gone.json() == {"semantic_var_id": variable, "status": "failed"}
        assert (await server.http.get(path)).json()["error"]["type"] == "Cancelled"
    assert await states(server, session) == {"make": "cancelled", "wait": "failed"}
    set_now = await server.http.put(f"/v1/session/{session}/variable/topic", json={"value": "late"})
    assert set_now.status_code == 409
    unknown = await server.http.delete(f"/v1/session/{session}/variable/nope")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "UnknownVariable")


async def test_a_ready_variable_stays(serve: Serve) -> None:
    """There is nothing to cancel, and the variable keeps its value."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("make", "one{{output:a}}", a="a"))
    await server.get(session, "a")
    gone = await server.http.delete(f"/v1/session/{session}/variable/a")
    assert gone.json()["status"] == "ready"
    assert (await server.get(session, "a")).json()["value"] == "one"


async def test_a_session_of_an_earlier_server_is_named_as_such(serve: Serve) -> None:
    """Its id names the server run that made it. An id that never existed is just unknown."""
    before, after = await serve(), await serve()
    session = await before.session()
    assert (await before.graph(session))["calls"] == []
    for answer in (
        await after.get(session, "x"),
        await after.submit(session, call("a", "hi{{output:x}}", x="x")),
        await after.http.get(f"/v1/session/{session}/graph"),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (410, "ServerRestarted")
        assert "restarted" in error["message"]
    await before.http.delete(f"/v1/session/{session}")
    for id in (session, "s_1", "never"):
        assert (await before.get(id, "x")).json()["error"]["type"] == "UnknownSession"


async def test_text_that_a_client_read_counts_only_where_it_agrees(serve: Serve) -> None:
    """An edge may carry a whole value or a part of it. Text that only claims to be from the
    variable is constant.
    """
    server = await serve()
    session = await server.session()
    await server.submit(session, call("make", "seven rivers{{output:a}}", a="a"))
    text = (await server.get(session, "a")).json()["value"]

    def told(name: str, value: str, source: str) -> dict[str, object]:
        x = {"in_out": "in", "value": value, "from_var": source}
        return call(name, "On {{input:x}}:{{output:o}}", x=x, o={"in_out": "out"})

    segments = [{"text": "river", "from_var": "a"}, {"text": "lake", "from_var": "a"}]
    answer = await server.submit(
        session,
        told("whole", text, "a"),
        told("part", "rivers", "a"),
        told("wrong", "lakes", "a"),
        told("nowhere", "rivers", "b"),
        call("segment", [*segments, {"output": "o"}], o={"in_out": "out"}),
        call("wrong segment", [segments[1], {"output": "o"}], o={"in_out": "out"}),
    )
    outputs = [c["outputs"]["o"] for c in answer.json()["calls"]]
    values = [(await server.get(session, output)).json()["value"] for output in outputs]
    assert values[2:] == ["On lakes:", "On rivers:", "riverlake", "lake"]
    graph = await server.graph(session)
    names = {c["call_id"]: c["name"] for c in graph["calls"]}
    edges = [(names[e["from"]], names[e["to"]]) for e in graph["edges"]]
    assert edges == [("make", "whole"), ("make", "part"), ("make", "segment")]


async def test_the_graph_names_the_model_of_each_call(serve: Serve) -> None:
    """The graph also names the model of calls that left the choice to the server."""
    server = await serve(NullConfig(model="m1"))
    session = await server.session()
    await server.submit(
        session,
        call("a", "hi{{output:x}}", x="x"),
        {**call("b", "hi{{output:y}}", y="y"), "model": "default"},
    )
    calls = (await server.graph(session))["calls"]
    assert [c["model"] for c in calls] == ["m1", "m1"]
    assert calls[0]["prefix_hashes"][0] == calls[1]["prefix_hashes"][0]
