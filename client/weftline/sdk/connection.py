"""The HTTP connections of the synchronous client: requests, event streams, and their retries.

Made by `.ci/sync_client.py`; change `weftline.sdk.aconnection`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from itertools import count
from time import sleep
from typing import Any

import httpx2

from weftline.contract.protocol import Get, Submit, to_wire
from weftline.sdk.http import (
    CONNECT_S,
    LIMITS,
    PINGS_S,
    TIMEOUT,
    Known,
    OnGraph,
    ServerEndpoint,
    body_of,
    certificates,
    idempotency,
    pause,
    text_of_event,
)
from weftline.sdk.resume import StreamedRequest
from weftline.sdk.text_stream import text_stream


class Connection:
    """A pool of connections to one server. Threads may share it."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_retries: int,
        transport: httpx2.BaseTransport | None,
    ) -> None:
        self._endpoint = ServerEndpoint.find(base_url, api_key)
        self._known = Known()
        self._max_retries = max_retries
        self._timeout = (
            TIMEOUT if timeout_s is None else httpx2.Timeout(timeout_s, connect=CONNECT_S)
        )
        self._http = httpx2.Client(
            base_url=self._endpoint.base_url,
            headers={**headers, **self._endpoint.headers},
            timeout=self._timeout,
            limits=LIMITS,
            transport=transport,
            verify=certificates(),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the response. Raises the error that the server answers with."""
        content = None if body is None else to_wire(body)
        headers = idempotency(method, path)
        for attempt in count():
            try:
                answer = self._http.request(method, path, json=content, headers=headers)
            except httpx2.TransportError as error:
                wait = pause(attempt, method, path, error, self._max_retries, self._known)
                if wait is None:
                    raise self._endpoint.unreachable(error) from error
            else:
                self._known.hear(answer)
                wait = pause(attempt, method, path, answer, self._max_retries, self._known)
                if wait is None:
                    return body_of(answer)
            sleep(wait)

    @text_stream
    def texts(
        self, path: str, body: Get | Submit, on_graph: OnGraph | None = None
    ) -> Generator[str, None, None]:
        """The text of one variable, in parts. `on_graph` gets the session's graph at its end."""
        with closing(self.events(path, body)) as events:
            for event in events:
                if text := text_of_event(event, on_graph):
                    yield text

    def events(
        self,
        path: str,
        body: Get | Submit | Mapping[str, Any],
        max_retries: int | None = None,
    ) -> Generator[httpx2.ServerSentEvent, None, None]:
        """The events of a streamed response, each once, also over broken connections.

        `max_retries` defaults to that of the client.
        """
        most = self._max_retries if max_retries is None else max_retries
        request = StreamedRequest(path, body, most, self._known)
        timeout = self._timeout
        if isinstance(body, Submit) and timeout.read is not None:
            # A stream may have no event for a long time, but the server pings every 15 s.
            timeout = httpx2.Timeout(max(timeout.read, PINGS_S), connect=CONNECT_S)
        while True:
            try:
                with self._http.sse(
                    path,
                    method="POST",
                    json=request.content,
                    headers=request.headers,
                    timeout=timeout,
                    max_event_size=None,  # a value or a graph is as large as the server makes it
                ) as source:
                    if request.goes_on(source.response):
                        for event in source:
                            if (new := request.new(event)) is not None:
                                yield new
                        request.check_whole()
                        return
                    wait = request.pause(source.response)
                    if wait is None:
                        source.response.read()
                        body_of(source.response)
            except httpx2.TransportError as error:
                wait = request.pause(error)
                if wait is None:
                    raise self._endpoint.unreachable(error, began=request.began) from error
            assert wait is not None, "an answer without success raises its error"
            sleep(wait)
