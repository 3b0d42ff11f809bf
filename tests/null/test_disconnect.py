"""Clients that disconnect, as ASGI's http.disconnect reports it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call, running
from tests.waits import WAIT_S, until
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.http import submits as calls

SLOW = NullConfig(latency=LatencyProfile(step_s=0.01))
WORDS = "word " * 1000


def posting(path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    """ASGI's scope of a POST."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "state": {},
    }


async def leave_after(server: Server, path: str, body: Any, parts: int) -> list[bytes]:
    """POST `body`, read `parts` parts of the response and disconnect. Return the parts sent until
    then. Without parts, it disconnects when it waits for a value.
    """
    gone = asyncio.Event()
    posted = asyncio.create_task(post_until(gone, server, path, body, parts))
    if parts == 0:
        await until(lambda: server.waiting)
        gone.set()
    return await posted


async def post_until(
    gone: asyncio.Event, server: Server, path: str, body: Any, parts: int = 0
) -> list[bytes]:
    """POST `body` and disconnect when `gone` is set. A number of parts sets it."""
    sent: list[bytes] = []
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            sent.append(message["body"])
            if len(sent) == parts:
                gone.set()

    await asyncio.wait_for(server.app(posting(path), receive, send), timeout=WAIT_S)
    return sent


async def test_leaving_a_get_cancels_its_call(serve: Serve) -> None:
    """The call of a get is cancelled with the last reader of its variable."""
    server = await serve(SLOW)
    session = await server.session()
    await server.submit(session, call("slow", WORDS + "{{output:x}}", x="x"))
    await leave_after(server, "/v1/get", {"session_id": session, "semantic_var_id": "x"}, 0)
    assert (await server.graph(session))["calls"][0]["state"] == "cancelled"


async def test_a_stream_that_is_not_resumed_cancels_its_call(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After RESUME_S the reader counts as gone, as if it had never streamed."""
    monkeypatch.setattr(calls, "RESUME_S", 0.01)
    server = await serve(SLOW)
    session = await server.session()
    await server.submit(session, call("slow", WORDS + "{{output:x}}", x="x"))
    body = {"session_id": session, "semantic_var_id": "x", "stream": True}
    await leave_after(server, "/v1/get", body, 3)
    await until(lambda: not server.driver.registry.busy())  # a get would be a reader
    assert (await server.graph(session))["calls"][0]["state"] == "cancelled"


@pytest.mark.parametrize("parts", [0, 3], ids=["whole", "streamed"])
async def test_leaving_a_whole_run_leaves_nothing(serve: Serve, parts: int) -> None:
    """A run in one request ends together with its session."""
    server = await serve(SLOW)
    calls = [call("slow", WORDS + "{{output:x}}", x="x")]
    want = {"stream": "x"} if parts else {"get": ["x"]}
    await leave_after(server, "/v1/submit", {"calls": calls, "close": True, **want}, parts)
    assert server.service.engines.status().sessions == 0


@pytest.mark.parametrize("parts", [0, 3], ids=["whole", "streamed"])
async def test_leaving_a_chat_leaves_nothing(serve: Serve, parts: int) -> None:
    """The same for a chat completion."""
    server = await serve(SLOW)
    body = {"messages": [{"role": "user", "content": WORDS}], "stream": parts > 0}
    await leave_after(server, "/v1/chat/completions", body, parts)
    assert server.service.engines.status().sessions == 0


@pytest.mark.parametrize("parts", [0, 3], ids=["whole", "streamed"])
async def test_leaving_a_chat_of_a_session_cancels_its_call_alone(serve: Serve, parts: int) -> None:
    """The session does not belong to the request, so it goes on."""
    server = await serve(SLOW)
    session = await server.session()
    messages = [{"role": "user", "content": WORDS}]
    body = {"messages": messages, "stream": parts > 0, "session_id": session}
    await leave_after(server, "/v1/chat/completions", body, parts)
    assert [call["state"] for call in (await server.graph(session))["calls"]] == ["cancelled"]
    assert running(server.driver.dispatcher) == {"null": (0, 0)}


async def test_only_a_session_that_stays_open_may_come_back(serve: Serve) -> None:
    """A run in one request can get no further calls. So the server keeps no context for it, and it
    never waits for admission. A chat of a tenant that is not known yet may be an agent's first
    request.
    """
    server = await serve(NullConfig(latency=LatencyProfile(step_s=60)))
    await server.session()
    run = {"calls": [call("slow", "one{{output:x}}", x="x")], "get": ["x"], "close": True}
    chat = {"messages": [{"role": "user", "content": "one"}]}
    gone, driver = asyncio.Event(), server.driver
    left = [
        asyncio.create_task(post_until(gone, server, "/v1/submit", run)),
        asyncio.create_task(post_until(gone, server, "/v1/chat/completions", chat)),
    ]
    await until(lambda: len(driver.registry) == 3)
    assert sorted(session.stays for session in driver.registry) == [False, True, True]
    gone.set()
    await asyncio.gather(*left)


@pytest.mark.parametrize("path", ["/v1/submit", "/v1/get", "/v1/chat/completions"])
@pytest.mark.parametrize("headers", [[], [(b"idempotency-key", b"k1")]], ids=["plain", "keyed"])
async def test_leaving_in_the_middle_of_the_body_is_no_bug(
    serve: Serve, caplog: pytest.LogCaptureFixture, path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    """The request counts as cancelled, its key may be used again, and nothing is logged."""
    server = await serve()
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"calls": [', "more_body": True},
        {"type": "http.disconnect"},
    ]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    app = server.app(posting(path, *headers), receive, send)
    await asyncio.wait_for(app, timeout=WAIT_S)
    assert statuses == [409]
    assert [record.message for record in caplog.records] == []
    whole = {"calls": [call("say", "one{{output:x}}", x="x")], "get": ["x"], "close": True}
    keyed = {name.decode(): value.decode() for name, value in headers}
    answer = await server.http.post("/v1/submit", json=whole, headers=keyed)
    assert answer.json()["values"] == {"x": "one"}
