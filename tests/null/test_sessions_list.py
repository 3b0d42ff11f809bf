"""Sessions are listed for their tenant, and can be looked at for some time after their end."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, call
from weftline import Client
from weftline_server.cli import main
from weftline_server.commands import sessions, trace
from weftline_server.config import ServerConfig
from weftline_server.graph.primitive import Task
from weftline_server.observe import search
from weftline_server.runtime.closed_sessions import (
    CALL_BYTES,
    SESSION_BYTES,
    ClosedConfig,
    ClosedSessions,
)
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession
from weftline_server.session.task import TaskRun
from weftline_server.session.variable import SessionVariable


def closed(id: str, at: float, *, size: int = 10, tenant: str = "t") -> ServerSession:
    """A session with one call, closed at second `at`."""
    session = ServerSession(id, tenant, now=0.0)
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
    empty = ServerSession("s", "t", now=0.0)
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
    assert (waiting["session_id"], waiting["state"], waiting["name"]) == (second, "open", "{q}")
    assert (waiting["application"], done["application"]) == ("waits", "draft")
    assert waiting["opened"] == pytest.approx(time.time(), abs=300)
    assert waiting["states"] == {"waiting": 1}
    assert (done["session_id"], done["state"], done["name"]) == (first, "closed", "two")
    assert (done["states"], done["calls"], done["steps"]) == ({"done": 1}, 1, 0)
    assert done["output_tokens"] > 0
    assert done["error"] is None
    shorter = (await server.http.get("/v1/sessions?limit=1")).json()
    assert ([row["session_id"] for row in shorter["sessions"]], shorter["total"]) == ([second], 2)


CHAT = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Name\n a river. " + "x" * 90},
]


async def test_a_session_has_a_name_that_tells_it_apart(serve: Serve) -> None:
    """The name of the run, else the first words of its first prompt, of a user where one speaks.
    Runs of one application have that of their first call in common.
    """
    server = await serve()
    chat = {"messages": CHAT, "max_tokens": 1}
    ours = {"session_id": "mine", "open": True, "name": "agent.model", "run_name": "nightly report"}
    await server.http.post("/v1/chat/completions", json=chat | {"weftline": ours})
    await server.http.post("/v1/chat/completions", json=chat)
    about = call("a", "About {{input:x}}: {{output:y}}", x={"in_out": "in", "value": "?"}, y="y")
    named = {"run_name": "evening report", "get": ["y"], "open": True, "session_id": "other"}
    await server.http.post("/v1/submit", json={"calls": [about], **named})
    rows = (await server.http.get("/v1/sessions")).json()["sessions"]
    assert [(row["name"], row["application"]) for row in rows] == [
        ("evening report", "evening report"),
        ("Name a river. " + "x" * 65 + "…", "chat"),
        ("nightly report", "nightly report"),
    ]
    for bad in ("x" * 129, "a\nb"):
        body = {"calls": [call("a", "{{output:y}}", y="y")], "run_name": bad}
        answer = await server.http.post("/v1/submit", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "run_name")


async def test_sessions_are_found_by_the_text_of_their_prompts_and_values(serve: Serve) -> None:
    """Whatever its case: in constants, inputs, values that a client set, answers, and objects. A
    tenant finds its own. A session that is forgotten is not found.
    """
    keys = {"key-a": "a", "key-b": "b"}
    server = await serve(config=ServerConfig(keys=keys), headers={"Authorization": "Bearer key-a"})
    ids = []
    for number, (prompt, value) in enumerate(
        [("The Danube", "x"), ("a", "Rhône"), ("b", {"k": 1})]
    ):
        ids.append(await server.session())
        await server.submit(ids[-1], call("c", prompt + "{{input:q}}{{output:y}}", q="q", y="y"))
        path = f"/v1/session/{ids[-1]}/variable/q"
        await server.http.put(path, json={"value": value})
        await server.get(ids[-1], "y")
        if number == 1:
            await server.http.delete(f"/v1/session/{ids[-1]}")

    async def found(text: str, key: str = "key-a") -> list[int]:
        answer = await server.http.get(
            "/v1/sessions", params={"text": text}, headers={"Authorization": f"Bearer {key}"}
        )
        body = answer.json()
        assert body["all_read"] is True and body["found"] == len(body["sessions"])
        return [ids.index(row["session_id"]) for row in body["sessions"]]

    assert await found("danube") == [0]
    assert await found("RHÔNE") == [1]
    assert await found('"k": 1') == [2]
    assert await found("") == [2, 1, 0]
    assert await found("nowhere") == await found("danube", "key-b") == []
    long = await server.http.get("/v1/sessions", params={"text": "x" * 257})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "text")


async def test_a_search_reads_the_newest_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so where it has not read all, and lets the event loop turn."""
    monkeypatch.setattr(search, "MOST_CHARS", 25)
    sessions = []
    for id in "abc":
        one = ServerSession(id, "t", now=0.0)
        one.execution.variables["v"] = SessionVariable("v", parts=[f"{id} was here"])
        sessions.append(one)
    assert await search.found_in(sessions, "WAS") == (sessions, True)
    sessions[2:2] = [sessions[1]]
    found, all_read = await search.found_in(sessions, "c was")
    assert (found, all_read) == ([], False)


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
        "found": 0,
        "all_read": True,
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
    "name": "draft\x1b" + "x" * 60,
    "application": "draft",
    "state": "open",
    "opened": 86_400.0,
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

    def serve(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.raw_path.decode())
        return httpx2.Response(200, json={"sessions": rows, "events": []})

    client = partial(Client, transport=httpx2.MockTransport(serve))
    for module in (sessions, trace):
        monkeypatch.setattr(module, "Client", client)
    return paths


def test_the_command_prints_a_line_for_each_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps count as calls, no text can steer the terminal, and a long name is cut. An open session
    has lasted "so far". The search is the server's.
    """
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    closed = {**ROW, "name": "poem", "state": "closed"}
    paths = answering(monkeypatch, [ROW, closed])
    assert main(["sessions", "--limit", "5", "--text", "a&b"]) == 0
    assert paths == ["/v1/sessions?limit=5&text=a%26b"]
    heads, line, ended = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", heads.strip())[:5] == ["session", "state", "name", "began", "duration"]
    assert re.split(r"  +", ended.strip())[2:5] == ["poem", "1970-01-02 00:00:00", "1.2 s"]
    assert re.split(r"  +", line.strip()) == [
        "s_1",
        "open",
        r"draft\x1b" + "x" * 38 + "…",
        "1970-01-02 00:00:00",
        "1.2 s so far",
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


async def test_a_forgotten_session_needs_no_garbage_collector(serve: Serve) -> None:
    """Its last reference frees it with all its calls, since its parts name each other in no circle.
    A full collection would look at every session that is kept.
    """
    closed = ClosedConfig(keep_s=0.0)
    server = await serve(config=ServerConfig(registry=RegistryConfig(closed=closed)))
    calls = [
        call("draft", "two {{output:x}}", x="x"),
        call("polish", "more {{input:x}} {{output:y}}", x="x", y="y"),
    ]
    gc.collect()
    gc.disable()
    try:
        before = runs()
        id = await server.session()
        await server.submit(id, *calls)
        assert (await server.get(id, "y")).status_code == 200
        assert runs() == before + 2
        await server.http.delete(f"/v1/session/{id}")
        await asyncio.sleep(0)
        assert runs() == before
    finally:
        gc.enable()


def runs() -> int:
    """How many tasks under way or ended are in memory."""
    return sum(isinstance(one, TaskRun) for one in gc.get_objects())
