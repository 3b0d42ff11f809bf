"""An engine that dies in the middle of a graph, as clients of a whole server see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx2
import pytest

from tests.null.asgi import Server, call
from weftline.errors import EngineFailed
from weftline_engine import api
from weftline_engine.pretend.null import NullConfig, NullEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.schedule.delivery import MAX_DEATHS
from weftline_server.schedule.engines import fleet


class Host:
    """The host of the engines. It kills an engine that gets `fatal` in a prompt, `deaths` times."""

    def __init__(self, deaths: int, after: int = 0) -> None:
        self.deaths = deaths
        self.after = after  # words of the output that are sent before the death
        self.waits: asyncio.Event | None = None  # what the death waits for
        self.started = 0
        self.attempts: list[tuple[str, int]] = []  # (prompt, attempt) of each op

    def engine(self) -> NullEngine:
        self.started += 1
        return Mortal(self)


class Mortal(NullEngine):
    """A null engine that runs on `host`."""

    def __init__(self, host: Host) -> None:
        super().__init__(NullConfig())
        self._host = host
        self._dead = False

    def submit(self, op: api.Op) -> None:
        self._host.attempts.append((op.text or "", op.attempt))
        if "fatal" not in (op.text or "") or not self._host.deaths:
            super().submit(op)
            return
        self._host.deaths -= 1
        self._dead = True
        for offset, word in enumerate((op.text or "").split()[: self._host.after]):
            self._emit(api.Part(**self._head(op), offset=offset, tokens=(0,), text=word))
        self._send()
        self._events.put_nowait(None)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        async for events in super().events():
            yield events
        if self._host.waits is not None:
            await self._host.waits.wait()
        if self._dead:
            raise api.EngineDied("killed by signal 9")


Start = Callable[[Host], Awaitable[Server]]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Start a server with one engine. A dead engine is started again at once."""
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    async with AsyncExitStack() as stack:

        async def start(host: Host) -> Server:
            app = create_app(ServerConfig(), {"null": host.engine})
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx2.ASGITransport(app)
            http = httpx2.AsyncClient(transport=transport, base_url="http://t")
            return Server(app, await stack.enter_async_context(http))

        yield start


CHAIN = (
    call("first", "one{{output:a}}", a="a"),
    call("second", "{{input:a}} fatal{{output:b}}", a="a", b="b"),
    call("third", "{{input:b}} three{{output:c}}", b="b", c="c"),
    call("beside", "four{{output:d}}", d="d"),
)


async def test_calls_of_a_dead_engine_run_again_on_its_successor(start: Start) -> None:
    """The client notices nothing: the graph continues, and values that were ready are not made
    again.
    """
    host = Host(deaths=2)
    server = await start(host)
    session = await server.session()
    await server.submit(session, *CHAIN)
    assert (await server.get(session, "c")).json()["value"] == "one fatal three"
    assert (await server.get(session, "d")).json()["value"] == "four"
    assert host.started == 3
    assert host.attempts.count(("one", 0)) == 1
    fatal = [attempt for prompt, attempt in host.attempts if prompt == "one fatal"]
    assert fatal == [0, 1, 2]
    assert {c["state"] for c in (await server.graph(session))["calls"]} == {"done"}


async def test_after_the_last_attempt_descendants_fail_with_the_reason(start: Start) -> None:
    """The error has the engine's reason and the call's name. The call and its descendants fail, the
    rest goes on.
    """
    host = Host(deaths=MAX_DEATHS)
    server = await start(host)
    session = await server.session()
    await server.submit(session, *CHAIN)
    for variable in "bc":
        answer = await server.get(session, variable)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["call"]) == (502, "EngineFailed", "second")
        assert error["message"] == "engine null died while it ran this call: killed by signal 9"
    assert (await server.get(session, "d")).json()["value"] == "four"
    states = {c["name"]: c["state"] for c in (await server.graph(session))["calls"]}
    assert states == {"first": "done", "second": "failed", "third": "failed", "beside": "done"}
    late = call("late", "{{input:b}}{{output:e}}", b="b", e="e")
    await server.submit(session, late, call("fresh", "fatal no more{{output:f}}", f="f"))
    assert (await server.get(session, "e")).json()["error"]["call"] == "second"
    assert (await server.get(session, "f")).json()["value"] == "fatal no more"


async def test_a_partly_generated_output_that_nobody_read_is_made_again(start: Start) -> None:
    """Consumers and gets wait for whole values, so the text of the first attempt is forgotten."""
    host = Host(deaths=1, after=1)
    server = await start(host)
    session = await server.session()
    await server.submit(session, *CHAIN)
    assert (await server.get(session, "c")).json()["value"] == "one fatal three"
    assert [attempt for prompt, attempt in host.attempts if prompt == "one fatal"] == [0, 1]


async def test_a_partly_read_output_is_not_made_again(start: Start) -> None:
    """A stream has passed on its beginning. A new attempt could give another text, so the call
    fails at the first death.
    """
    host = Host(deaths=1, after=1)
    host.waits = asyncio.Event()
    server = await start(host)
    session = await server.session()
    await server.submit(session, *CHAIN)
    stream = server.service.readers.stream(server.service.registry.find("local", session), "b")
    assert (await anext(aiter(stream))).text == "one"
    host.waits.set()
    error = (await server.get(session, "c")).json()["error"]
    assert (error["type"], error["call"]) == ("EngineFailed", "second")
    part = (await server.http.get(f"/v1/session/{session}/variable/b")).json()
    assert (part["status"], part["text"]) == ("failed", "one")
    assert [attempt for prompt, attempt in host.attempts if prompt == "one fatal"] == [0]
    with pytest.raises(EngineFailed):
        await anext(aiter(stream))
