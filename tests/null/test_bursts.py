"""A burst of calls is sent, and its events are heard, in many turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from weftline_engine import api
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_server.schedule.engines.fleet import TURN_EVENTS
from weftline_server.schedule.rounds import TURN_SENDS

CALLS = 3 * TURN_SENDS + 1


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self._tick()

    def _tick(self) -> None:
        self.now += 1
        asyncio.get_running_loop().call_soon(self._tick)


class Noting(NullEngine):
    """Counts the ops that came in each turn."""

    def __init__(self) -> None:
        super().__init__(NullConfig(model="noting"))
        self.turns = Turns()
        self.sent: Counter[int] = Counter()
        self.began = asyncio.Event()

    def submit(self, op: api.Op) -> None:
        self.sent[self.turns.now] += 1
        self.began.set()
        super().submit(op)


def named(number: int) -> dict[str, Any]:
    """A call that answers its number, on the noting engine."""
    made = call(f"c{number}", f"{number}{{{{output:o}}}}", o=f"v{number}")
    return {**made, "model": "noting"}


@pytest.fixture
async def noting(serve: Serve) -> tuple[Server, Noting]:
    """A server and its engine."""
    engine = Noting()
    return await serve(NullConfig(), also={"noting": lambda: engine}), engine


async def test_a_round_sends_a_burst_in_parts(noting: tuple[Server, Noting]) -> None:
    """No turn sends more than TURN_SENDS calls. Every call runs once."""
    server, engine = noting
    names = [f"v{i}" for i in range(CALLS)]
    body = {"calls": [named(i) for i in range(CALLS)], "get": names}
    answer = await server.http.post("/v1/submit", json=body)
    assert answer.json()["values"] == {f"v{i}": str(i) for i in range(CALLS)}
    assert sum(engine.sent.values()) == CALLS
    assert max(engine.sent.values()) <= TURN_SENDS


async def test_what_is_cancelled_between_two_parts_is_not_sent(
    noting: tuple[Server, Noting],
) -> None:
    """The session is closed when the first part is sent. The server goes on with another one."""
    server, engine = noting
    body = {"calls": [named(i) for i in range(CALLS)], "detach": True}
    await server.http.post("/v1/submit", json=body)
    await engine.began.wait()
    (session,) = server.service.registry
    server.service.close(session)
    answer = await server.http.post("/v1/submit", json={"calls": [named(7)], "get": ["v7"]})
    assert answer.json()["values"] == {"v7": "7"}
    assert sum(engine.sent.values()) <= TURN_SENDS + 1


async def test_a_stream_has_the_same_chunks_whatever_ran_before(serve: Serve) -> None:
    """The engine's events of earlier calls split no stream."""
    server = await serve(NullConfig(mode=NullMode.FIXED))
    words = TURN_EVENTS // 6  # so that some stream holds the place where the count is full
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": words, "stream": True}
    streams = []
    for _ in range(12):
        answer = await server.http.post("/v1/chat/completions", json=body)
        streams.append(answer.text.count("data: "))
    assert streams == [streams[0]] * len(streams)
