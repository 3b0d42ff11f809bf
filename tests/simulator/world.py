"""Runs the server's sessions, passes, policy and dispatcher in this process, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weftline.contract.protocol import (
    Call,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
    SubmitBody,
)
from weftline.contract.tools import Function, Tool
from weftline_engine.api import Engine, Usage
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session.session import ServerSession

# Steps like those of SmolLM2-135M on two cores. 512 rows after 2,566 tokens spent 0.6 s in matrix
# products and 0.8 s in attention. So each token that a prompt token attends to costs 0.0005 of the
# prompt token itself.
TWO_CORES = SimulatedConfig(
    cost=StepCost(step_s=0.02, fill_s=0.0015, attend_s=0.7e-6, sequence_s=0.001),
    part_tokens=8,
    beside_tokens=96,
)


@dataclass
class World:
    """A running server; `now` is its clock, `engines` are its simulated engines."""

    driver: Driver
    loop: asyncio.AbstractEventLoop
    engines: list[SimulatedEngine] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.loop.time()

    async def ask(self, session: ServerSession, call: Call) -> str:
        """Submit a call that only writes a variable, and return its text when it is complete."""
        await self.driver.submit(session, SubmitBody(calls=(call,)))
        (out,) = call.placeholders
        assert out.semantic_var_id is not None, "its value is read"
        return (await self.driver.readers.get(session, out.semantic_var_id)).text


def usage_of(session: ServerSession, variable: str) -> Usage:
    """What the call that wrote a variable has used."""
    task = session.execution.producer(variable)
    usage = task.steps[-1].usage if task is not None else None
    assert usage is not None, "the call has ended well"
    return usage


def asking(prompt: str, variable: str, tokens: int, **sampling: Any) -> Call:
    """A greedy call that writes at most `tokens` tokens behind a prompt to a variable."""
    greedy = Sampling(max_tokens=tokens, temperature=0.0, **sampling)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=variable, sampling=greedy)
    return Call(
        name="turn", prompt=(Segment(text=prompt), Segment(output="o")), placeholders=(out,)
    )


def chatting(said: str, variable: str, tool: str, tokens: int) -> Call:
    """A call of a chat that may ask for `tool`, with all that was said before as its prompt."""
    sampling = Sampling(max_tokens=tokens, temperature=0.0)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=variable, sampling=sampling)
    prompt = (
        Message(role="user", content=(Segment(text=said),)),
        Message(role="assistant", content=(Segment(output="o"),)),
    )
    tools = (Tool(function=Function(name=tool, parameters={"type": "object"})),)
    return Call(name="turn", prompt=prompt, placeholders=(out,), tools=tools)


@asynccontextmanager
async def world(
    loop: VirtualLoop,
    *configs: SimulatedConfig,
    policy: str = "app",
    without: frozenset[str] = frozenset(),
) -> AsyncIterator[World]:
    """A server on a simulated engine of each config, stopped at the end of the block."""
    engines: list[SimulatedEngine] = []

    def make(config: SimulatedConfig) -> SimulatedEngine:
        engines.append(SimulatedEngine(config, loop.time))
        return engines[-1]

    makers = {f"e{i}": partial(make, config) for i, config in enumerate(configs)}
    async with serving(loop, makers, policy=policy, without=without) as made:
        made.engines = engines
        yield made


@asynccontextmanager
async def serving(
    loop: asyncio.AbstractEventLoop,
    makers: Mapping[str, Callable[[], Engine]],
    *,
    policy: str = "app",
    without: frozenset[str] = frozenset(),
) -> AsyncIterator[World]:
    """A server on the engines that `makers` create, stopped at the end of the block."""
    registry = Registry(RegistryConfig(max_sessions=1 << 30), without)
    dispatcher = Dispatcher(makers, policy, loop.time, without)
    made = World(Driver(registry, dispatcher, without, loop.time), loop)
    await dispatcher.start(made.driver.reports)
    try:
        yield made
    finally:
        await made.driver.shut_down()
        await dispatcher.close()
