"""A streamed request that continues after its connection breaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from weftline.http import MAX_RETRIES, idempotency, pause
from weftline.protocol import Get, Submit, to_wire


class StreamedRequest:
    """How a request is sent and sent again, and which events the caller has already received.

    The stream of a variable continues after `Last-Event-ID`. A submit is sent again with the same
    idempotency key, and gives all its events again. Those that the caller has had are skipped.
    OpenAI's routes can do neither, so a broken stream of theirs stays broken.
    """

    def __init__(
        self, path: str, body: Get | Submit | Mapping[str, Any], max_retries: int = MAX_RETRIES
    ) -> None:
        self.path = path
        self.content: Any = to_wire(body)
        self.began = False  # an answer has begun, perhaps without an event so far
        self._key = idempotency("POST", path)
        self._max_retries = max_retries
        self._attempt = 0  # attempts since the last new event
        self._ends, self._left = _ends(body)
        self._last_id = ""
        self._seen = 0  # events that the caller has had
        self._passed = 0  # those of them that came again in this attempt

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next attempt."""
        if self.path == "/v1/get" and self._last_id:
            return {"Last-Event-ID": self._last_id}
        return dict(self._key)  # the caller adds to them

    def goes_on(self, response: httpx.Response) -> bool:
        """Whether events follow; False for a refusal.

        Raises RemoteProtocolError if the events belong to another run than the earlier ones: the
        server has forgotten the first run, and two halves of different texts must not be joined.
        """
        if not response.is_success:
            return False
        if self._seen and self._key and "idempotency-replayed" not in response.headers:
            self._attempt = self._max_retries
            raise httpx.RemoteProtocolError("the server has begun anew")
        self.began = True
        self._passed = 0
        return True

    def is_new(self, event: ServerSentEvent) -> bool:
        """Whether the caller has not had `event` yet.

        A ping carries nothing, so it is never new.
        """
        if not event.data:
            return False
        if self._key and self._passed < self._seen:
            self._passed += 1
            return False
        self._seen += 1
        self._passed = self._seen
        self._attempt = 0
        self._last_id = event.id
        self._left -= event.event in self._ends or event.data == "[DONE]"
        return True

    def check_whole(self) -> None:
        """Raise RemoteProtocolError if the stream ended before its last event.

        A proxy that gives up ends a stream in the same way as a server that is done.
        """
        if self._left > 0:
            raise httpx.RemoteProtocolError("the stream ended before its last event")

    def pause(self, result: httpx.Response | httpx.TransportError) -> float | None:
        """Seconds to wait before another attempt; None if `result` is final."""
        wait = pause(self._attempt, "POST", self.path, result, self._max_retries)
        self._attempt += 1
        return wait


def _ends(body: Get | Submit | Mapping[str, Any]) -> tuple[frozenset[str], int]:
    """The kinds of events that end a stream, and how many of them a whole stream has."""
    match body:
        case Get():
            return frozenset({"value"}), 1
        case Submit(graph=True):
            return frozenset({"graph"}), 1
        case Submit():
            return frozenset({"value", "failed"}), max(1, len(body.watch))
    return frozenset(), 1  # one of OpenAI's streams ends with [DONE]
