"""One engine on several servers: their ops stay apart, and each hears of what the others have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from tests.contract.target import Heard
from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.transport.tcp.join_gate import JoinedEngine, JoinGate
from weftline_engine.transport.tcp.join_host import EngineHost, HostConfig

KEY = "a key of enough characters"
CONFIG = SimulatedConfig(cost=StepCost(step_s=0.002, fill_s=0.0, sequence_s=0.0), kv_tokens=8192)
PREFIXES = (("p16", 16), ("p32", 32))
OP = api.Op(
    id="op",
    kind=api.Kind.GENERATE,
    context="context",
    tokens=tuple(range(40)),
    sampling=api.SamplingParams(max_tokens=4, temperature=0.0),
    salt="tenant",
    hints=api.Hints(footprint=api.Footprint(held=44, computed=44, prefixes=PREFIXES)),
)


class _Server:
    """A server's gate, the engine that joined it, and what it has heard of it."""

    def __init__(self) -> None:
        self.gate = JoinGate(KEY, self._admit)
        self.engine: JoinedEngine
        self.description: api.Description
        self.heard: dict[str, Heard] = {}
        self.elsewhere: list[api.Elsewhere] = []
        self.joined = 0
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def _admit(self, name: str, engine: api.Engine, description: api.Description) -> None:
        assert isinstance(engine, JoinedEngine)
        self.engine, self.description = engine, description
        self.joined += 1
        self._task = asyncio.create_task(self._listen(engine))

    async def _listen(self, engine: api.Engine) -> None:
        async for events in engine.events():
            async with self._news:
                for event in events:
                    if isinstance(event, api.Elsewhere):
                        self.elsewhere.append(event)
                    heard = self.heard.setdefault(event.op, Heard())
                    heard.events.append(event)
                    if isinstance(event, api.Finished):
                        heard.finished = event
                    if isinstance(event, api.Failed):
                        heard.failed = event
                self._news.notify_all()

    def is_one_of(self, count: int) -> bool:
        """Whether it has heard that so many servers use the engine."""
        return bool(self.elsewhere) and self.last.servers == count

    async def until(self, enough: Callable[..., bool], *arguments: object) -> None:
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(partial(enough, *arguments))

    async def end(self, op: str) -> Heard:
        def ended() -> bool:
            found = self.heard.get(op, Heard())
            return bool(found.finished or found.failed)

        await self.until(ended)
        return self.heard[op]

    @property
    def last(self) -> api.Elsewhere:
        return self.elsewhere[-1]

    async def close(self) -> None:
        if self._task is not None:
            await self.engine.close()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.gate.close()


@asynccontextmanager
async def joined(count: int) -> AsyncIterator[list[_Server]]:
    """Servers that one engine has joined."""
    servers = [_Server() for _ in range(count)]
    ports = [await one.gate.listen("127.0.0.1", 0) for one in servers]
    config = HostConfig(servers=tuple(("127.0.0.1", port) for port in ports), key=KEY)
    host = EngineHost(config, lambda: SimulatedEngine(CONFIG))
    running = asyncio.create_task(host.run())
    try:
        for server in servers:
            await server.until(server.is_one_of, count)
        yield servers
    finally:
        host.leave()
        await asyncio.wait_for(running, 60)
        for server in servers:
            await server.close()


async def test_equal_ids_of_two_servers_are_two_ops() -> None:
    """Each gets its own events, and the second finds the first one's prompt in the cache. Each
    server's events are numbered without a gap.
    """
    async with joined(2) as (one, two):
        assert one.description.is_shared
        one.engine.submit(OP)
        first = (await one.end("op")).finished
        two.engine.submit(OP)
        second = (await two.end("op")).finished
        assert first is not None and first.usage.cached_tokens == 0
        assert second is not None and second.usage.cached_tokens == 39
        for server in (one, two):
            numbers = [e.sequence for heard in server.heard.values() for e in heard.events]
            assert sorted(numbers) == list(range(1, len(numbers) + 1))


async def test_a_server_hears_of_the_ops_and_prefixes_of_the_other() -> None:
    """While the op runs it is load there. When it is cancelled, the other server hears what is left
    of its context.
    """
    async with joined(2) as (one, two):
        long = api.SamplingParams(max_tokens=2000, temperature=0.0)
        one.engine.submit(replace(OP, sampling=long))
        await two.until(lambda: two.last.running == 1)
        assert (two.last.held, two.last.latency) == (44, 44)
        [(context, prefixes)] = [came for told in two.elsewhere for came in told.came]
        assert prefixes == PREFIXES
        assert all(told.running == 0 for told in one.elsewhere)
        one.engine.cancel("op")
        await two.until(lambda: two.last.running == 0)
        told = [moved for report in two.elsewhere for moved in report.moved]
        assert told and {moved[0] for moved in told} == {context}


async def test_the_cache_is_shared_out_by_the_engine() -> None:
    """Half each at first. A server that needs more gets what the other does not use."""
    async with joined(2) as (one, two):
        for server in (one, two):
            server.engine.claim(api.Claim(used=0, wanted=0, seen=server.last.grant))
        await two.until(lambda: two.last.room == 4096)
        two.engine.claim(api.Claim(used=4000, wanted=4000, seen=two.last.grant))
        await one.until(lambda: one.last.room is not None and one.last.room < 200)
        assert two.last.room == 4096, "the other one may have admitted something meanwhile"
        async with asyncio.timeout(60):
            while two.last.room is None or two.last.room < 8000:
                # A server claims again when it hears of another grant. One more may be on its way.
                one.engine.claim(api.Claim(used=0, wanted=0, seen=one.last.grant))
                await asyncio.sleep(0.05)


async def test_a_server_that_is_gone_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its ops are cancelled, and the other one's go on. When it is back, the engine joins it."""
    caplog.set_level(logging.CRITICAL)
    async with joined(2) as (one, two):
        long = api.SamplingParams(max_tokens=2000, temperature=0.0)
        one.engine.submit(replace(OP, sampling=long))
        two.engine.submit(OP)
        await two.until(lambda: two.last.running == 1)
        await one.engine.close()
        await two.until(lambda: two.last.running == 0)
        assert (await two.end("op")).finished is not None
        await one.until(lambda: one.joined == 2)
        one.engine.submit(OP)
        assert (await one.end("op")).finished is not None
