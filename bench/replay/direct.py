"""Uses the verbs of one simulated engine without a server, as other systems' policies do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine
from weftline_engine.pretend.virtual_time import VirtualLoop


@dataclass(slots=True)
class Flight:
    """An op in flight: its output, when its first token came, and its end."""

    ended: asyncio.Future[api.Usage]
    on_first: Callable[[], None] | None = None
    tokens: list[int] = field(default_factory=list)
    first: float | None = None


class Direct:
    """Sends ops to an engine, and hears their events."""

    def __init__(self, engine: SimulatedEngine, costs: api.KvCosts, loop: VirtualLoop) -> None:
        self.engine = engine
        self.costs = costs
        self.loop = loop
        self._flights: dict[str, Flight] = {}

    def send(self, op: api.Op, on_first: Callable[[], None] | None = None) -> Flight:
        """Submit an op. `on_first` is called at its first token."""
        flight = self._flights[op.id] = Flight(self.loop.create_future(), on_first)
        self.engine.submit(op)
        return flight

    async def hear(self) -> None:
        """Pass the engine's events on."""
        async for events in self.engine.events():
            for event in events:
                if (flight := self._flights.get(event.op)) is None:
                    continue
                if isinstance(event, api.Part):
                    flight.tokens.extend(event.tokens)
                    if flight.first is None:
                        flight.first = event.time
                        if flight.on_first is not None:
                            flight.on_first()
                elif isinstance(event, api.Finished):
                    del self._flights[event.op]
                    flight.ended.set_result(event.usage)
                elif isinstance(event, api.Failed):
                    flight.ended.set_exception(RuntimeError(event.message))


@asynccontextmanager
async def direct(config: SimulatedConfig, loop: VirtualLoop) -> AsyncIterator[Direct]:
    """An engine that is stopped at the end of the block."""
    engine = SimulatedEngine(config, loop.time)
    description = await engine.start()
    assert description.kv_costs is not None, "a simulated engine announces its costs"
    found = Direct(engine, description.kv_costs, loop)
    hearing = asyncio.create_task(found.hear())
    try:
        yield found
    finally:
        hearing.cancel()
        await engine.close()
