"""One event loop in a thread of its own, on which everything that waits for a server waits.

A chain may be invoked from any thread and any loop, and its steps may call a model without
awaiting it in the middle of a coroutine. Whoever wants a result waits for a future of this loop, so
no caller keeps another's answer from arriving, and connections outlive the loops of their callers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, TypeVar

from langchain_weftline.lowered import Server
from weftline import AsyncClient

T = TypeVar("T")

MAX_CLIENTS = 64


class Background:
    """The loop and its clients, one a server; both are made when they are first needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[Server, AsyncClient] = {}

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work`; cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "weftline-background"
                Thread(target=self._loop.run_forever, name=name, daemon=True).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def client(self, server: Server) -> AsyncClient:
        """The client of a server, for work on the loop."""
        client = self._clients.get(server)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                oldest = next(iter(self._clients))
                await self._clients.pop(oldest).close()
            key = server.api_key.get_secret_value()
            client = self._clients[server] = AsyncClient(server.base_url, key)
        return client

    def forget(self) -> None:
        """Start anew: a forked process has the loop's memory and not its thread."""
        self.__init__()  # type: ignore[misc] # a fresh state is what is meant


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.forget)
