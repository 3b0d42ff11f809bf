"""What comes from outside: addresses in requests, and jumps of the machine's clock."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tests.null.asgi import Serve, call


async def test_no_request_makes_the_server_call_an_address(serve: Serve) -> None:
    """Every place of a request in which a client could hope that an address is fetched."""
    server = await serve()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        schema = {"$schema": url, "$ref": url, "properties": {"a": {"$ref": f"{url}#/a"}}}
        messages = [{"role": "user", "content": "hi"}]
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        chat: list[dict[str, Any]] = [
            {"model": url, "messages": messages},
            {"model": "null", "messages": image},
            {"model": "null", "messages": messages, "tools": [tool]},
            {"model": "null", "messages": messages, "response_format": form},
        ]
        found = [
            (await server.http.post("/v1/chat/completions", json=body)).status_code for body in chat
        ]
        steps = [
            {"kind": "embed", "items": {"value": ["a"]}, "engine": url, "out": "v"},
            {"kind": "search", "query": {"value": "a"}, "store": url, "out": "v"},
            {"kind": "fetch", "ids": {"value": [url]}, "store": url, "out": "v"},
            {"kind": "function", "function": url, "args": {}, "out": "v"},
        ]
        session = await server.session()
        for step in steps:
            found.append((await server.submit(session, steps=[step])).status_code)
        headers = {"x-forwarded-host": url, "origin": url, "referer": url, "traceparent": url}
        found.append((await server.http.get("/v1/models", headers=headers)).status_code)
        assert found[0] == 404 and found[1] == 400 and max(found) < 500, found
        assert all(status >= 400 for status in found[4:8]), found
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_the_wall_clock_jumps(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """A session under way goes on, is not taken for an old one, and its times stay in order."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("a", "{{input:x}} a {{output:y}}", x="given", y="made"))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    server.driver.sweep()
    await server.http.put(f"/v1/session/{session}/variable/given", json={"value": "now"})
    assert (await server.get(session, "made")).json()["value"] == "now a "
    (made,) = (await server.graph(session))["calls"]
    (step,) = made["steps"]
    times = [made["submitted_s"], step["queued_s"], step["started_s"], step["finished_s"]]
    assert times == sorted(times) and times[0] >= 0.0 and times[-1] < 60.0
    (row,) = (await server.http.get("/v1/sessions")).json()["sessions"]
    assert 0.0 <= row["age_s"] < 60.0
    server.driver.sweep()
    assert (await server.http.delete(f"/v1/session/{session}")).status_code < 300
