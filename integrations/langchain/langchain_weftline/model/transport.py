"""An async HTTP client that any event loop may use: each loop has connections of its own.

A connection belongs to the loop that opened it. With one pool for all of them, as the openai client
has, a second `asyncio.run` meets connections whose loop is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import openai

if TYPE_CHECKING:
    import httpx as httpx
else:
    # Of its two kinds the one that the installed openai client is made of.
    _base = next(c for c in openai.DefaultAsyncHttpxClient.__mro__ if c.__name__ == "AsyncClient")
    httpx = import_module(_base.__module__.partition(".")[0])

MAX_CONNECTIONS = 1000
MAX_KEPT = 100
ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]


class _PerLoop(httpx.AsyncBaseTransport):
    """Hands each request to the connections of the loop that it is sent from."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is None:
            for other in list(self._loops):
                if other.is_closed():  # its connections know it, so it would stay
                    self._loops.pop(other, None)
            pool = self._loops[loop] = _Pool()
            await pool.open()
        return await pool.transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Nothing to do: each loop closes its own connections when it ends."""


class _Pool:
    """The connections of one loop, closed with it."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_KEPT)
        self.transport = httpx.AsyncHTTPTransport(
            verify=_certificates(), limits=limits, socket_options=ALIVE
        )
        self._end = self._wait_for_the_end()

    async def open(self) -> None:
        # A loop that is shut down closes the async generators that were begun on it.
        await anext(self._end)

    async def _wait_for_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.transport.aclose()


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes 40 ms."""
    return httpx.create_ssl_context()


@cache
def async_client() -> Any:  # of either kind
    """The client that all models share."""
    transport: Any = _PerLoop()
    return openai.DefaultAsyncHttpxClient(transport=transport)
