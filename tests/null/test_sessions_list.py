"""Sessions are listed for their tenant, and can be looked at for some time after their end."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import httpx
import pytest

from tests.null.asgi import Serve, call
from weftline import Client
from weftline_server.cli import main
from weftline_server.commands import sessions, trace
from weftline_server.config import ServerConfig
from weftline_server.graph.primitive import Task
from weftline_server.runtime.closed import (
    CALL_BYTES,
    SESSION_BYTES,
    ClosedConfig,
    ClosedSessions,
)
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.session import events as ev
from weftline_server.session.session import Session


def closed(id: str, at: float, *, size: int = 10, tenant: str = "t") -> Session:
    """A session with one call, closed at second `at`."""
    session = Session(id, tenant, now=0.0)
    task = Task(id=f"c_{id}", name="call", resource="m", primitives=(), constant_bytes=size)
    session.spent.take_tasks([task], 0.0)
    session.execution.tasks[task.id] = None
    session.ended = at
    return session


# Bytes that leave 100 to the values of three sessions with one call each.
ROOM = 3 * (SESSION_BYTES + CALL_BYTES) + 100


def kept(store: ClosedSessions, *tenants: str) -> list[str]:
    return [one.id for tenant in tenants or ("t",) for one in store.of(tenant)]


def test_closed_sessions_are_bounded_by_age_number_and_memory() -> None:
    """At each bound the oldest go first. A tenant's number bounds this tenant alone."""
    store = ClosedSessions(ClosedConfig(keep_s=10.0, most=2, bytes=ROOM))
    for at, id in enumerate("abc"):
        store.keep(closed(id, at), at)
    store.keep(closed("x", 3.0, tenant="other"), 3.0)
    assert kept(store, "t", "other") == ["c", "b", "x"]
    store.expire(11.5)
    assert kept(store, "t", "other") == ["c", "x"]
    store.keep(closed("large", 12.0, size=85), 12.0)
    assert kept(store, "t", "other") == ["large", "x"]
    store.keep(closed("too large", 12.0, size=ROOM), 12.0)
    assert kept(store, "t", "other") == ["large", "x"]
    assert store.find("other", "large") is None
    store.expire(99.0)
    assert kept(store, "t", "other") == []


def test_nothing_is_kept_without_a_call_or_with_zero_seconds() -> None:
    """A session that ran nothing has nothing to show."""
    store = ClosedSessions(ClosedConfig())
    empty = Session("s", "t", now=0.0)
    empty.handle(ev.SessionClosed(now=1.0))
    store.keep(empty, 1.0)
    off = ClosedSessions(ClosedConfig(keep_s=0.0))
    off.keep(closed("a", 0.0), 0.0)
    assert (kept(store), kept(off)) == ([], [])


async def test_a_list_of_open_and_closed_sessions(serve: Serve) -> None:
    """The last opened comes first. A row counts calls by state, and tokens of ended outputs."""
    server = await serve()
    first = await server.session()
    await server.submit(first, call("draft", "two {{output:x}}", x="x"))
    assert (await server.get(first, "x")).status_code == 200
    second = await server.session()
    await server.submit(second, call("waits", "{{input:q}} {{output:y}}", q="q", y="y"))
    await server.http.delete(f"/v1/session/{first}")
    answer = (await server.http.get("/v1/sessions")).json()
    assert answer["total"] == 2
    waiting, done = answer["sessions"]
    assert (waiting["session_id"], waiting["state"], waiting["name"]) == (second, "open", "waits")
    assert waiting["states"] == {"waiting": 1}
    assert (done["session_id"], done["state"], done["name"]) == (first, "closed", "draft")
    assert (done["states"], done["calls"], done["steps"]) == ({"done": 1}, 1, 0)
    assert done["output_tokens"] > 0
    assert done["error"] is None
    shorter = (await server.http.get("/v1/sessions?limit=1")).json()
    assert ([row["session_id"] for row in shorter["sessions"]], shorter["total"]) == ([second], 2)


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
async def test_a_wrong_limit_is_refused(serve: Serve, limit: str) -> None:
    """0, more than 1,000, and a word are a 400 that names the parameter."""
    server = await serve()
    answer = await server.http.get("/v1/sessions", params={"limit": limit})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


async def test_a_closed_session_can_be_read_and_not_changed(serve: Serve) -> None:
    """Its graph, its events and its values are there; to every verb it is unknown."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("draft", "two {{output:x}}", x="x"))
    value = (await server.get(session, "x")).json()["value"]
    await server.http.delete(f"/v1/session/{session}")
    graph = await server.graph(session)
    assert [one["state"] for one in graph["calls"]] == ["done"]
    events = (await server.http.get(f"/v1/session/{session}/events")).json()["events"]
    assert events[-1]["event"] == "SessionClosed"
    path = f"/v1/session/{session}/variable/x"
    assert (await server.http.get(path)).json()["value"] == value
    for refused in (
        await server.http.delete(f"/v1/session/{session}"),
        await server.http.put(f"/v1/session/{session}/variable/z", json={"value": 1}),
        await server.submit(session, call("more", "{{output:z}}", z="z")),
        await server.get(session, "x"),
    ):
        assert (refused.status_code, refused.json()["error"]["type"]) == (404, "UnknownSession")


async def test_no_tenant_sees_the_sessions_of_another(serve: Serve) -> None:
    """Neither open nor closed ones, in the list or by their ids."""
    keys = {"key-a": "a", "key-b": "b"}
    server = await serve(config=ServerConfig(keys=keys), headers={"Authorization": "Bearer key-a"})
    session = await server.session()
    await server.submit(session, call("draft", "two {{output:x}}", x="x"))
    await server.http.delete(f"/v1/session/{session}")
    other = {"Authorization": "Bearer key-b"}
    assert (await server.http.get("/v1/sessions", headers=other)).json() == {
        "sessions": [],
        "total": 0,
    }
    for path in ("graph", "events", "variable/x"):
        mine = await server.http.get(f"/v1/session/{session}/{path}")
        theirs = await server.http.get(f"/v1/session/{session}/{path}", headers=other)
        assert (mine.status_code, theirs.status_code) == (200, 404)


async def test_the_server_forgets_closed_sessions_by_its_clock(serve: Serve) -> None:
    """With `keep_s` 0 a closed session is gone at once."""
    closed = ClosedConfig(keep_s=0.0)
    server = await serve(config=ServerConfig(registry=RegistryConfig(closed=closed)))
    session = await server.session()
    await server.submit(session, call("draft", "two {{output:x}}", x="x"))
    await server.http.delete(f"/v1/session/{session}")
    assert (await server.http.get("/v1/sessions")).json()["sessions"] == []
    assert (await server.http.get(f"/v1/session/{session}/graph")).status_code == 404


ROW: dict[str, Any] = {
    "session_id": "s_1",
    "name": "draft\x1b",
    "state": "open",
    "opened": 0.0,
    "age_s": 1.25,
    "calls": 2,
    "steps": 1,
    "states": {"done": 3},
    "prompt_tokens": 30,
    "cached_tokens": 4,
    "output_tokens": 5,
    "engines": ["null"],
    "error": None,
}


def answering(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[str]:
    """Let the commands ask a server that lists `rows`; returns the paths that they ask for."""
    paths: list[str] = []

    def serve(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.decode())
        return httpx.Response(200, json={"sessions": rows, "events": []})

    client = partial(Client, transport=httpx.MockTransport(serve))
    for module in (sessions, trace):
        monkeypatch.setattr(module, "Client", client)
    return paths


def test_the_command_prints_a_line_for_each_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps count as calls, and no text can steer the terminal."""
    paths = answering(monkeypatch, [ROW])
    assert main(["sessions", "--limit", "5"]) == 0
    assert paths == ["/v1/sessions?limit=5"]
    heads, line = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", heads.strip())[:3] == ["session", "state", "name"]
    assert re.split(r"  +", line.strip()) == [
        "s_1",
        "open",
        r"draft\x1b",
        "1.2 s",
        "3",
        "30",
        "4",
        "5",
    ]


def test_trace_shows_the_last_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--last asks for the newest one; without any it says what to do."""
    paths = answering(monkeypatch, [ROW])
    assert main(["trace", "--last", "--events"]) == 0
    assert paths == ["/v1/sessions?limit=1", "/v1/session/s_1/events"]
    answering(monkeypatch, [])
    assert main(["trace", "--last"]) == 1
    assert "the server has no session: run a program first" in capsys.readouterr().err
