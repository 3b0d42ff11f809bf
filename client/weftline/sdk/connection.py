"""The HTTP connections of a client: requests, event streams, and their retries."""

from __future__ import annotations

import os
from asyncio import sleep
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from copy import copy
from itertools import count
from typing import Any
from urllib.parse import urlencode
from weakref import WeakSet, finalize

import httpx2

from weftline.contract.protocol import GetBody, SubmitBody, to_wire
from weftline.sdk.background import Close
from weftline.sdk.http import (
    LIMITS,
    PINGS_S,
    Known,
    OnGraph,
    ServerEndpoint,
    body_of,
    certificates,
    idempotency,
    pause,
    text_of_event,
    time_limits,
)
from weftline.sdk.resume import StreamedRequest


class _OfParent(httpx2.AsyncBaseTransport):
    """Stands for a transport that was given to the client before the process was forked."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise RuntimeError(
            "the transport of this client belongs to the parent process: make a client with a "
            "transport of its own after the fork"
        )


class AsyncConnection:
    """A pool of connections to one server, for one event loop.

    A process that was forked gets a pool of its own: on a connection that two processes share,
    each could read the other's answer.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        proxy: str | None,
        timeout_s: float | None,
        connect_s: float | None,
        max_retries: int,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self._endpoint = ServerEndpoint.find(base_url, api_key)
        self._known = Known()
        self._max_retries = max_retries
        self._timeout = time_limits(timeout_s, connect_s)
        # A header of the user's replaces ours, also the key, as in the openai client.
        self._headers = httpx2.Headers(self._endpoint.headers)
        self._headers.update(headers)
        self._query, self._proxy = urlencode(query), proxy
        self._transport = transport
        self._dropped: finalize[..., AsyncConnection] | None = None
        self._http = self._pool(transport)
        _CONNECTIONS.add(self)

    def _pool(self, transport: httpx2.AsyncBaseTransport | None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self._endpoint.base_url,
            headers=self._headers,
            proxy=self._proxy,
            timeout=self._timeout,
            limits=LIMITS,
            transport=transport,
            verify=certificates(),
        )

    @property
    def is_own(self) -> bool:
        """Whether it goes over a pool of its own, and not over a transport that the user gave."""
        return self._transport is None

    def twin(self) -> AsyncConnection:
        """Another connection to the same server, for another event loop."""
        made = copy(self)
        made._dropped, made._http = None, self._pool(None)
        _CONNECTIONS.add(made)
        return made

    def when_dropped(self, close: Callable[[Close], None]) -> None:
        """Call `close` with what closes the connections, once nothing refers to this object."""
        self._dropped = finalize(self, close, self._http.aclose)
        self._dropped.atexit = False

    def renew(self) -> None:
        """Leave the connections to the parent process, and begin with none."""
        self._http = self._pool(None if self._transport is None else _OfParent())
        if self._dropped is not None:
            self._dropped.detach()  # that would close the parent's connections

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _at(self, path: str) -> str:
        """A path with the user's query. httpx2 would put that in the place of the path's own."""
        return f"{path}{'&' if '?' in path else '?'}{self._query}" if self._query else path

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the response. Raises the error that the server answers with."""
        content = None if body is None else to_wire(body)
        headers = idempotency(method, path)
        for attempt in count():
            try:
                answer = await self._http.request(
                    method, self._at(path), json=content, headers=headers
                )
            except httpx2.TransportError as error:
                wait = pause(attempt, method, path, error, self._max_retries, self._known)
                if wait is None:
                    raise self._endpoint.unreachable(error) from error
            else:
                self._known.hear(answer)
                wait = pause(attempt, method, path, answer, self._max_retries, self._known)
                if wait is None:
                    return body_of(answer)
            await sleep(wait)

    async def texts(
        self, path: str, body: GetBody | SubmitBody, on_graph: OnGraph | None = None
    ) -> AsyncGenerator[str, None]:
        """The text of one variable, in parts. `on_graph` gets the session's graph at its end."""
        async with aclosing(self.events(path, body)) as events:
            async for event in events:
                if text := text_of_event(event, on_graph):
                    yield text

    async def events(
        self,
        path: str,
        body: GetBody | SubmitBody | Mapping[str, Any],
        max_retries: int | None = None,
    ) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """The events of a streamed response, each once, also over broken connections.

        `max_retries` defaults to that of the client.
        """
        most = self._max_retries if max_retries is None else max_retries
        request = StreamedRequest(path, body, most, self._known)
        timeout = self._timeout
        if isinstance(body, SubmitBody) and timeout.read is not None:
            # A stream may have no event for a long time, but the server pings every 15 s.
            timeout = httpx2.Timeout(max(timeout.read, PINGS_S), connect=timeout.connect)
        while True:
            try:
                async with self._http.sse(
                    self._at(path),
                    method="POST",
                    json=request.content,
                    headers=request.headers,
                    timeout=timeout,
                    max_event_size=None,  # a value or a graph is as large as the server makes it
                ) as source:
                    if request.goes_on(source.response):
                        async for event in source:
                            if (new := request.new(event)) is not None:
                                yield new
                        request.check_whole()
                        return
                    wait = request.pause(source.response)
                    if wait is None:
                        await source.response.aread()
                        body_of(source.response)
            except httpx2.TransportError as error:
                wait = request.pause(error)
                if wait is None:
                    raise self._endpoint.unreachable(error, began=request.began) from error
            assert wait is not None, "an answer without success raises its error"
            await sleep(wait)


_CONNECTIONS: WeakSet[AsyncConnection] = WeakSet()


def _renew() -> None:
    for connection in list(_CONNECTIONS):
        connection.renew()


os.register_at_fork(after_in_child=_renew)
