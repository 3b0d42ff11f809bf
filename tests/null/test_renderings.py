"""Large values on their way to clients: rendered once for all readers, in pieces, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.retrieval.test_steps import engines
from weftline_server.config import ServerConfig
from weftline_server.http import guard
from weftline_server.http.renderings import Renderings
from weftline_server.http.state import state_of

LARGE = 1 << 20  # characters of a value


class SlowReader:
    """A client that reads one part of an answer at a time, when it is told to."""

    def __init__(
        self, server: Server, path: str, body: dict[str, Any], key: str = "", method: str = "POST"
    ) -> None:
        self.parts: list[bytes] = []
        self.status = 0
        self._may_read = asyncio.Semaphore(0)
        self._left = asyncio.Event()
        headers = [(b"content-type", b"application/json"), (b"host", b"t")]
        if key:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": headers, "client": ("c", 1), "server": ("t", 80), "asgi": {"version": "3.0"},
            "app": server.app,
        }  # fmt: skip
        self._body = [json.dumps(body).encode()]
        self.task = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.parts.append(message["body"])
        await self._may_read.acquire()

    @property
    def last(self) -> bytes:
        return self.parts[-1] if self.parts else b""

    def read_on(self) -> None:
        """Read another part, unless it is one of the value."""
        if self.parts and b"value" not in self.last and self._may_read.locked():
            self._may_read.release()

    async def read_all(self) -> bytes:
        for _ in range(10_000):
            self._may_read.release()
        await self.task
        return b"".join(self.parts)

    async def leave(self) -> None:
        self._left.set()
        await self.task


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


async def with_values(server: Server, *names: str) -> str:
    """A session with a large value under each name."""
    session = await server.session()
    for name in names:
        path = f"/v1/session/{session}/variable/{name}"
        answer = await server.http.put(path, json={"value": name * LARGE})
        assert answer.status_code == 200, answer.text
    return session


def reader(server: Server, session: str, name: str, **more: Any) -> SlowReader:
    body = {"session_id": session, "semantic_var_id": name, **more}
    return SlowReader(server, "/v1/get", body)


@pytest.mark.parametrize("stream", [False, True])
async def test_one_rendering_of_a_value_serves_all_its_readers(serve: Serve, stream: bool) -> None:
    """Two hundred clients get one value and read only its beginning. It is rendered once, and none
    of them has more than a piece of it. Those that read on get all of it.
    """
    server = await serve()
    renderings = state_of(server.app).renderings
    session = await with_values(server, "x")
    readers = [reader(server, session, "x", stream=stream) for _ in range(200)]
    while not all(b"value" in one.last for one in readers):
        for one in readers:
            one.read_on()
        await asyncio.sleep(0)
    assert renderings.made == 1 and LARGE < renderings.bytes["local"] < LARGE + 200
    texts = [await one.read_all() for one in readers]
    assert len(set(texts)) == 1 and renderings.made == 1
    assert max(len(part) for one in readers for part in one.parts) < (1 << 16) + 200
    if not stream:
        whole = {"semantic_var_id": "x", "status": "ready", "value": "x" * LARGE}
        assert json.loads(texts[0]) == whole
    assert not renderings.bytes


async def test_bytes_of_answers_are_bounded_for_each_tenant_and_in_all(serve: Serve) -> None:
    """Clients of one tenant get ten values. Two have room, the others wait and hold nothing, and
    another tenant's client has room beside them. One after the other they get theirs.
    """
    keys = {"key-a": "a", "key-b": "b"}
    server = await serve(config=ServerConfig(keys=keys), headers={"Authorization": "Bearer key-a"})
    most = 2 * LARGE
    renderings = state_of(server.app).renderings = Renderings(most, most)
    names = "abcdefghij"
    session = await with_values(server, *names)
    body = {"session_id": session}
    readers = [
        SlowReader(server, "/v1/get", {**body, "semantic_var_id": name}, "key-a") for name in names
    ]
    await until(lambda: sum(bool(one.parts) for one in readers) == 2)
    await until(lambda: len(renderings._waiting) == 8)
    assert renderings.made == 2 and most < renderings.bytes["a"] < most + 200
    server.http.headers["Authorization"] = "Bearer key-b"
    theirs = await with_values(server, "z")
    answer = await server.get(theirs, "z")
    assert answer.json()["value"] == "z" * LARGE and renderings.made == 3
    first, *others = sorted(readers, key=lambda one: not one.parts)
    await first.leave()
    for one in others:
        text = await one.read_all()
        assert json.loads(text)["status"] == "ready"
    assert renderings.made == 11 and not renderings.bytes and not renderings._waiting


async def test_large_values_come_with_a_submit_and_in_a_watch(serve: Serve) -> None:
    """The fields beside them are those of small values."""
    server = await serve()
    for name, value in (("small", "s"), ("large", ["l" * LARGE, {"é": None}])):
        session = await server.session()
        await server.http.put(f"/v1/session/{session}/variable/{name}", json={"value": value})
        answer = await server.submit(session, get=[name], graph=True)
        found = answer.json()
        assert list(found) == ["session_id", "calls", "steps", "values", "graph"]
        assert found["values"] == {name: value}
        watched = await server.submit(session, watch=[name])
        [event] = [one for one in watched.text.split("\n\n") if "event: value" in one]
        id, kind, data = event.splitlines()
        assert (id, kind) == (f"id: {name} ", "event: value")
        assert json.loads(data[6:]) == {"semantic_var_id": name, "value": value}
    assert state_of(server.app).renderings.made == 2


async def test_any_large_answer_is_sent_by_pieces_and_counts(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client does not read a long document. A request of its tenant is refused until it does."""
    monkeypatch.setattr(guard, "MOST_OF_TENANT", 100_000)
    server = await serve()
    unread = SlowReader(server, "/openapi.json", {}, method="GET")
    await until(lambda: bool(unread.parts))
    assert unread.status == 200, unread.parts
    answer = await server.http.post("/v1/session")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "bytes of answers to you are not read yet" in answer.json()["error"]["message"]
    assert len(unread.parts[0]) == 1 << 16
    whole = await unread.read_all()
    assert json.loads(whole)["info"]["title"] == "weftline"
    assert (await server.http.post("/v1/session")).status_code == 200


# Answers that are no values of /v1/get: a state with its value, and vectors. Both have about 1 MB.
OTHERS: dict[str, Callable[[Server, str], SlowReader]] = {
    "variable": lambda server, session: SlowReader(
        server, f"/v1/session/{session}/variable/x", {}, method="GET"
    ),
    "embeddings": lambda server, session: SlowReader(
        server, "/v1/embeddings", {"input": ["fox"] * 2048, "model": "words"}
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
async def test_answers_that_are_made_at_once_are_bounded(
    kind: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty clients ask before the first answer is there, and read nothing. The bound holds the
    first answers. The others are refused, and hold nothing. One that asks again later has its own.
    """
    monkeypatch.setattr(guard, "MOST_OF_TENANT", 5 * LARGE)
    server = await serve(also=engines())
    session = await with_values(server, "x")
    readers = [OTHERS[kind](server, session) for _ in range(40)]
    await until(lambda: all(one.status for one in readers))
    taken = [one for one in readers if one.status == 200]
    size = len(await taken[0].read_all())
    assert len(taken) == 5 * LARGE // size
    refused = [one for one in readers if one.status == 429]
    assert len(refused) == 40 - len(taken)
    for one in refused:
        assert b"bytes of answers to you are not read yet" in await one.read_all()
    for one in taken[1:]:
        assert len(await one.read_all()) == size
    again = OTHERS[kind](server, session)
    assert len(await again.read_all()) == size and again.status == 200
