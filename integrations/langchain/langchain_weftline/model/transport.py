"""An async HTTP client that works on any event loop: each loop has its own connections.

A connection belongs to the loop that opened it. The openai client has one pool for all loops, so a
second `asyncio.run` would use connections whose loop is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import openai

if TYPE_CHECKING:
    import httpx as httpx
else:
    # Two packages have such a class. Use the one that the installed openai client uses.
    _base = next(c for c in openai.DefaultAsyncHttpxClient.__mro__ if c.__name__ == "AsyncClient")
    httpx = import_module(_base.__module__.partition(".")[0])

Respond = Callable[[Any], Any]


class Answering(httpx.Client):
    """A client that sends nothing: `respond` makes the response of each request.

    A tool that patches the HTTP library, such as a recorder or a tracer, does not see the requests.
    """

    def __init__(self, respond: Respond) -> None:
        super().__init__(transport=httpx.MockTransport(respond))
        self._respond = respond

    def send(self, request: httpx.Request, **_: Any) -> httpx.Response:
        response: httpx.Response = self._respond(request)
        response.request = request
        return response


MAX_CONNECTIONS = 1000
MAX_KEPT = 100
ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]


class _PerLoop(httpx.AsyncBaseTransport):
    """Sends each request over the connections of the running loop."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is None:
            for other in list(self._loops):
                if other.is_closed():  # drop its connections, which would keep the loop in memory
                    self._loops.pop(other, None)
            pool = self._loops[loop] = _Pool()
            await pool.open()
        return await pool.transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Nothing to do: each loop closes its own connections when it ends."""


class _Pool:
    """The connections of one loop. They are closed when the loop ends."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_KEPT)
        self.transport = httpx.AsyncHTTPTransport(
            verify=_certificates(), limits=limits, socket_options=ALIVE
        )
        self._end = self._wait_for_the_end()

    async def open(self) -> None:
        # When a loop shuts down, it closes the async generators that were started on it.
        await anext(self._end)

    async def _wait_for_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.transport.aclose()


@cache
def _certificates() -> ssl.SSLContext:
    """The machine's certificates, read once, because reading takes 40 ms."""
    return httpx.create_ssl_context()


@cache
def async_client() -> Any:  # its type depends on the package that openai uses
    """The HTTP client that all models share."""
    transport: Any = _PerLoop()
    return openai.DefaultAsyncHttpxClient(transport=transport)
