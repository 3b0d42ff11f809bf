"""One event loop in a thread of its own, on which an adapter waits for servers.

Frameworks call a model from any thread and any loop. Work that runs here outlives the loop of its
caller, as do its connections, and whoever wants a result waits for a future of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from weftline.aclient import AsyncClient

T = TypeVar("T")

MAX_CLIENTS = 64


class Background:
    """The loop and its clients, one for each server and key; all are made when first needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[tuple[str, str | None], AsyncClient] = {}

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work`; cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "weftline-background"
                Thread(target=self._loop.run_forever, name=name, daemon=True).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, for a caller that waits; one that is interrupted cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def client(self, base_url: str, api_key: str | None) -> AsyncClient:
        """The client of a server, for work on the loop."""
        key = base_url, api_key
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                oldest = next(iter(self._clients))
                await self._clients.pop(oldest).close()
            client = self._clients[key] = AsyncClient(base_url, api_key)
        return client

    def forget(self) -> None:
        """Start anew: a forked process has the memory of the loop, and not its thread."""
        self._lock, self._loop, self._clients = Lock(), None, {}


@dataclass(slots=True)
class _Link(Generic[T]):
    item: T
    next: Future[_Link[T] | None] = field(default_factory=Future)


class Chain(Generic[T]):
    """Items that come one by one, for readers on any thread or loop; each reads from the first."""

    def __init__(self) -> None:
        self._first: Future[_Link[T] | None] = Future()
        self._last = self._first

    def add(self, item: T) -> None:
        """One more."""
        link = _Link(item)
        self._last.set_result(link)
        self._last = link.next

    def end(self, error: BaseException | None = None) -> None:
        """There are no more; readers meet `error` when they get there."""
        if self._last.done():
            return
        if error is None:
            self._last.set_result(None)
        else:
            self._last.set_exception(error)

    def __iter__(self) -> Generator[T, None, None]:
        link = self._first.result()
        while link is not None:
            yield link.item
            link = link.next.result()

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        link = await asyncio.shield(asyncio.wrap_future(self._first))
        while link is not None:
            yield link.item
            link = await asyncio.shield(asyncio.wrap_future(link.next))


class Relay(Generic[T]):
    """An async generator that runs on the background loop, read from elsewhere.

    Both ways of reading it stop the generator when they are left before its end.
    """

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._chain: Chain[T] = Chain()
        self._work = BACKGROUND.start(self._run(source))

    async def _run(self, source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    self._chain.add(item)
        except BaseException as error:
            self._chain.end(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._chain.end()

    def __iter__(self) -> Generator[T, None, None]:
        try:
            yield from self._chain
        finally:
            self._work.cancel()

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        try:
            async for item in self._chain:
                yield item
        finally:
            self._work.cancel()


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.forget)
