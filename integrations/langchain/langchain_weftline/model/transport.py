"""HTTP clients whose connections belong to one process and, where they are async, to one loop.

A child process that fork makes has copies of its parent's connections: on one of them, it would
read the answer to another process's prompt. An async connection belongs to the loop that opened it.
The openai client has one pool for all loops, so a second `asyncio.run` would use connections whose
loop is closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies
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


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies of requests: that of the model, or those that the environment names."""

    own: str | None
    of_environment: tuple[tuple[str, str], ...]

    @staticmethod
    def of(own: str | None) -> Proxies:
        return Proxies(own, () if own else tuple(sorted(getproxies().items())))

    def options(self, transport: Callable[..., Any]) -> dict[str, Any]:
        """The options of an HTTP client, whose `transport` goes through no proxy."""
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_KEPT)
        made = {"verify": _certificates(), "limits": limits}
        if self.own is not None or self.of_environment:
            return {**made, "proxy": self.own}  # without a transport, it reads the environment
        return {"transport": transport(**made, socket_options=ALIVE)}


class SharedClient(httpx.Client):
    """Sends each request over the connections of the running process."""

    def __init__(self, proxies: Proxies) -> None:
        super().__init__(transport=httpx.MockTransport(_no_response))
        self.proxies = proxies
        # The clients of parent processes stay: closing one could end a connection of the parent.
        self._by_process: dict[int, Any] = {}

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        process = os.getpid()
        client = self._by_process.get(process)
        if client is None:  # no lock, which a fork could copy while it is held
            made = openai.DefaultHttpxClient(**self.proxies.options(httpx.HTTPTransport))
            client = self._by_process.setdefault(process, made)
        response: httpx.Response = client.send(request, **options)
        return response

    def close(self) -> None:
        """Nothing to do: other models use these connections, too."""


class SharedAsyncClient(httpx.AsyncClient):
    """Sends each request over the connections of the running process and loop."""

    def __init__(self, proxies: Proxies) -> None:
        super().__init__(transport=httpx.MockTransport(_no_response))
        self.proxies = proxies
        self._by_process: dict[int, WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool]] = {}

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        loop = asyncio.get_running_loop()
        loops = self._by_process.setdefault(os.getpid(), WeakKeyDictionary())
        pool = loops.get(loop)
        if pool is None:
            for other in list(loops):
                if other.is_closed():  # drop its connections, which would keep the loop in memory
                    loops.pop(other, None)
            pool = loops[loop] = _Pool(self.proxies)
            await pool.open()
        response: httpx.Response = await pool.client.send(request, **options)
        return response

    async def aclose(self) -> None:
        """Nothing to do: each loop closes its own connections when it ends."""


class _Pool:
    """The connections of one loop. They are closed when the loop ends."""

    def __init__(self, proxies: Proxies) -> None:
        options = proxies.options(httpx.AsyncHTTPTransport)
        self.client: Any = openai.DefaultAsyncHttpxClient(**options)
        self._end = self._wait_for_the_end()

    async def open(self) -> None:
        # When a loop shuts down, it closes the async generators that were started on it.
        await anext(self._end)

    async def _wait_for_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.client.aclose()


def _no_response(request: Any) -> Any:
    raise AssertionError("a shared client sends over the client of its process")


@cache
def _certificates() -> ssl.SSLContext:
    """The machine's certificates, read once, because reading takes 40 ms."""
    return httpx.create_ssl_context()


@cache
def client(proxies: Proxies) -> SharedClient:
    """The HTTP client of all models with these proxies."""
    return SharedClient(proxies)


@cache
def async_client(proxies: Proxies) -> SharedAsyncClient:
    """The async HTTP client of all models with these proxies."""
    return SharedAsyncClient(proxies)
