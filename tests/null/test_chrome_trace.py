"""A session's trace in Chrome's JSON format."""

from __future__ import annotations

import json

from tests.null.asgi import Serve, call


async def test_phases_are_slices_and_edges_are_flows(serve: Serve) -> None:
    """Each call has a row with its phases in order. The edge joins the two rows."""
    server = await serve()
    session = await server.session()
    await server.submit(
        session,
        call("draft", "one two{{output:a}}", a="a"),
        call("polish", "{{input:a}} three{{output:b}}", a="a", b="b"),
    )
    await server.get(session, "b")
    answer = await server.http.get(f"/v1/session/{session}/trace")
    events = json.loads(answer.text)["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert list(names.values()) == ["draft", "polish"]
    for row in names:
        slices = [one for one in events if one["ph"] == "X" and one["tid"] == row]
        assert [one["name"] for one in slices][:3] == ["queue", "fill", "generate"]
        assert all(one["dur"] >= 0 and one["ts"] >= 0 for one in slices)
        assert [one["ts"] for one in slices] == sorted(one["ts"] for one in slices)
    [start] = [one for one in events if one["ph"] == "s"]
    [end] = [one for one in events if one["ph"] == "f"]
    assert (names[start["tid"]], names[end["tid"]], start["name"]) == ("draft", "polish", "a")
    assert start["id"] == end["id"]
    assert (await server.http.get("/v1/session/nope/trace")).status_code == 404
