"""Runs the server's sessions, passes, policy and dispatcher in this process, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from weftline_engine.api import Engine
from weftline_engine.simulated import SimulatedConfig, SimulatedEngine
from weftline_engine.virtual_time import VirtualLoop
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.memory.lengths import Lengths


@dataclass
class World:
    """A running server; `now` is its clock, `engines` are its simulated engines."""

    driver: Driver
    loop: asyncio.AbstractEventLoop
    engines: list[SimulatedEngine] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.loop.time()


@asynccontextmanager
async def world(
    loop: VirtualLoop,
    *configs: SimulatedConfig,
    policy: str = "app",
    without: frozenset[str] = frozenset(),
    lengths: Lengths | None = None,
) -> AsyncIterator[World]:
    """A server on a simulated engine of each config, stopped at the end of the block.

    `lengths` predicts outputs in place of the server's own predictor.
    """
    engines: list[SimulatedEngine] = []

    def make(config: SimulatedConfig) -> SimulatedEngine:
        engines.append(SimulatedEngine(config, loop.time))
        return engines[-1]

    makers = {f"e{i}": partial(make, config) for i, config in enumerate(configs)}
    async with serving(loop, makers, policy=policy, without=without, lengths=lengths) as made:
        made.engines = engines
        yield made


@asynccontextmanager
async def serving(
    loop: asyncio.AbstractEventLoop,
    makers: Mapping[str, Callable[[], Engine]],
    *,
    policy: str = "app",
    without: frozenset[str] = frozenset(),
    lengths: Lengths | None = None,
) -> AsyncIterator[World]:
    """A server on the engines that `makers` create, stopped at the end of the block."""
    registry = Registry(RegistryConfig(max_sessions=1 << 30), without)
    dispatcher = Dispatcher(makers, policy, loop.time, without)
    dispatcher.lengths = lengths or dispatcher.lengths
    made = World(Driver(registry, dispatcher, without, loop.time), loop)
    await dispatcher.start(made.driver)
    try:
        yield made
    finally:
        await made.driver.shut_down()
        await dispatcher.close()
