"""The events of a session, over HTTP and as `weftline trace --events` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, call
from weftline import Client
from weftline_server.cli import main
from weftline_server.commands import trace
from weftline_server.config import ServerConfig
from weftline_server.session.session import ServerSession


@dataclass(frozen=True)
class Line:
    """A line of a session's story."""

    number: int
    at_s: float
    event: str
    about: str
    text: str


STORY = [
    Line(1, 0.0, "CallsSubmitted", "", "draft, final"),
    Line(2, 12.3456, "TextGenerated", "draft/0", "two\nlines \x1b[2J of Übersicht"),
]
EVENTS = [
    {"n": 1, "t": 0.0, "event": "CallsSubmitted", "about": "", "text": "draft, final"},
    {
        "n": 2,
        "t": 12.3456,
        "event": "TextGenerated",
        "about": "draft/0",
        "text": "two\nlines \x1b[2J of Übersicht",
    },
]


async def test_the_events_of_a_session(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the session's story is an object, in order."""
    monkeypatch.setattr(ServerSession, "story", lambda session: STORY)
    server = await serve()
    session = await server.session()
    answer = await server.http.get(f"/v1/session/{session}/events")
    assert (answer.status_code, answer.json()) == (200, {"events": EVENTS})


async def test_a_real_story_has_the_same_shape(serve: Serve) -> None:
    """Numbers grow, every field is there, and a call is sent before it finishes."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("one", "two{{output:x}}", x="x"))
    assert (await server.get(session, "x")).status_code == 200
    events = (await server.http.get(f"/v1/session/{session}/events")).json()["events"]
    assert all(set(event) == {"n", "t", "event", "about", "text"} for event in events)
    assert [event["n"] for event in events] == sorted({event["n"] for event in events})
    assert all(0 <= event["t"] < 60 for event in events)
    names = [event["event"] for event in events]
    assert names[0] == "TasksSubmitted"
    assert names.index("PrimitiveSent") < names.index("PrimitiveFinished")
    assert all(len(event["text"]) <= 80 for event in events)


async def test_only_its_tenant_sees_the_events(serve: Serve) -> None:
    """To another tenant the session does not exist."""
    keys = {"key-a": "a", "key-b": "b"}
    server = await serve(config=ServerConfig(keys=keys), headers={"Authorization": "Bearer key-a"})
    path = f"/v1/session/{await server.session()}/events"
    assert (await server.http.get(path)).status_code == 200
    other = await server.http.get(path, headers={"Authorization": "Bearer key-b"})
    assert (other.status_code, other.json()["error"]["type"]) == (404, "UnknownSession")


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any],
    *words: str,
    code: int = 0,
) -> tuple[str, str]:
    """The path that `weftline trace WORDS s_1` asks for, and its output for `answer`."""
    paths: list[str] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.path)
        return httpx2.Response(200, json=answer)

    transport = httpx2.MockTransport(serve)
    monkeypatch.setattr(trace, "Client", partial(Client, transport=transport))
    assert main(["trace", *(words or ("--events",)), "s_1"]) == code
    (path,) = paths
    said = capsys.readouterr()
    return path, said.out if code == 0 else said.err


def test_trace_prints_one_event_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is in columns. Unprintable characters are escaped, so that a line stays a line."""
    path, text = printed(monkeypatch, capsys, {"events": EVENTS})
    assert path == "/v1/session/s_1/events"
    assert text.splitlines() == [
        "n  seconds  event           about    text",
        "1    0.000  CallsSubmitted           draft, final",
        "2   12.346  TextGenerated   draft/0  two\\nlines \\x1b[2J of Übersicht",
    ]


def test_trace_of_a_session_without_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the head of the table is printed."""
    assert printed(monkeypatch, capsys, {"events": []})[1] == "n  seconds  event  about  text\n"


def test_trace_draws_a_picture_only_where_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A path that does not exist is one sentence and no traceback."""
    graph = {"session_id": "s_1", "calls": [], "steps": [], "variables": []}
    monkeypatch.chdir(tmp_path)
    _, text = printed(monkeypatch, capsys, graph, "--why")
    assert "picture" not in text and list(tmp_path.iterdir()) == []
    _, text = printed(monkeypatch, capsys, graph, "--output", "drawn.svg")
    assert text.endswith("picture: drawn.svg\n") and (tmp_path / "drawn.svg").exists()
    said = printed(monkeypatch, capsys, graph, "--output", "none/drawn.svg", code=1)[1]
    assert said == "weftline: none/drawn.svg: no such file or directory\n"
