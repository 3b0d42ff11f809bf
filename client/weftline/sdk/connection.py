"""The HTTP connections of the synchronous client: requests, event streams, and their retries."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from itertools import count
from time import sleep
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, connect_sse

from weftline.contract.protocol import Get, Submit, to_wire
from weftline.sdk.http import (
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
from weftline.sdk.text_stream import TextStream


class Connection:
    """A pool of connections to one server. Threads may share it."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._endpoint = ServerEndpoint.find(base_url, api_key)
        self._known = Known()
        self._http = httpx.Client(
            base_url=self._endpoint.base_url,
            headers=self._endpoint.headers,
            timeout=TIMEOUT,
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
            except httpx.TransportError as error:
                wait = pause(attempt, method, path, error, known=self._known)
                if wait is None:
                    raise self._endpoint.unreachable(error) from error
            else:
                self._known.hear(answer)
                wait = pause(attempt, method, path, answer, known=self._known)
                if wait is None:
                    return body_of(answer)
            sleep(wait)

    def texts(
        self, path: str, body: Get | Submit, on_graph: OnGraph | None = None
    ) -> Generator[str, None, None]:
        """The text of one variable, in parts. `on_graph` gets the session's graph at its end."""
        return TextStream(self._read_texts(path, body, on_graph))

    def _read_texts(
        self, path: str, body: Get | Submit, on_graph: OnGraph | None
    ) -> Generator[str, None, None]:
        with closing(self.events(path, body)) as events:
            for event in events:
                if text := text_of_event(event, on_graph):
                    yield text

    def events(
        self, path: str, body: Get | Submit | Mapping[str, Any]
    ) -> Generator[ServerSentEvent, None, None]:
        """The events of a streamed response, each once, also over broken connections."""
        request = StreamedRequest(path, body, known=self._known)
        while True:
            try:
                with connect_sse(
                    self._http, "POST", path, json=request.content, headers=request.headers
                ) as source:
                    if request.goes_on(source.response):
                        for event in source.iter_sse():
                            if (new := request.new(event)) is not None:
                                yield new
                        request.check_whole()
                        return
                    wait = request.pause(source.response)
                    if wait is None:
                        source.response.read()
                        body_of(source.response)
            except httpx.TransportError as error:
                wait = request.pause(error)
                if wait is None:
                    raise self._endpoint.unreachable(error, began=request.began) from error
            assert wait is not None, "an answer without success raises its error"
            sleep(wait)
