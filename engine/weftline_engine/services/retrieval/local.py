"""An items engine in the server's own process, for backends that compute next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from weftline_engine import api
from weftline_engine.services.retrieval.core import ItemBackend, ItemsCore


class LocalItems:
    """An `api.Engine` whose steps run on the event loop, one batch in each turn."""

    def __init__(self, backend: ItemBackend, most_items: int = 32, kept: int | None = None) -> None:
        self._backend = backend
        self.core = ItemsCore(backend, most_items=most_items, kept=kept)
        self._wake = asyncio.Event()
        self._closed = False

    async def start(self) -> api.Description:
        return self._backend.describe()

    def submit(self, op: api.Op) -> None:
        self.core.submit(op)
        self._wake.set()

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        self.core.feed(op, offset, part, last)
        self._wake.set()

    def update(self, op: str, hints: api.Hints) -> None:
        self.core.update(op, hints)

    def cancel(self, op: str) -> None:
        self.core.cancel(op)
        self._wake.set()

    def retain(self, context: str, retention: api.Retention) -> None:
        self.core.retain(context, retention)

    def free(self, context: str) -> None:
        self.core.free(context)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while not self._closed:
            await self._wake.wait()
            if self.core.busy:
                yield self.core.step()
                await asyncio.sleep(0)
            else:
                self._wake.clear()

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
