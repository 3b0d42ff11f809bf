"""A streamed request that goes on where a broken connection has cut it off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from weftline.http import MAX_RETRIES, idempotency, pause
from weftline.protocol import Get, Submit, to_wire


class StreamedRequest:
    """How a request is sent, and sent again; and which of its events the caller has not had yet.

    The stream of a variable goes on after `Last-Event-ID`. A submit is sent again with its key and
    gives its events again from the first one on; those that the caller has had are passed over.
    OpenAI's routes can do neither, so that what breaks there stays broken.
    """

    def __init__(
        self, path: str, body: Get | Submit | Mapping[str, Any], max_retries: int = MAX_RETRIES
    ) -> None:
        self.path = path
        self.content: Any = to_wire(body)
        self.began = False  # an answer was under way, perhaps without an event so far
        self._key = idempotency("POST", path)
        self._max_retries = max_retries
        self._attempt = 0  # since there was something new
        self._ends, self._left = _ends(body)
        self._last_id = ""
        self._seen = 0  # events that the caller has had
        self._passed = 0  # of them, those that came again in this attempt

    @property
    def headers(self) -> dict[str, str]:
        """Those of the next attempt."""
        if self.path == "/v1/get" and self._last_id:
            return {"Last-Event-ID": self._last_id}
        return dict(self._key)  # the caller adds to them

    def goes_on(self, response: httpx.Response) -> bool:
        """Whether events follow; False for a refusal.

        Raises RemoteProtocolError where they are of another run than those before: the server has
        forgotten the first one, and two halves of different texts make no text.
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
        """Whether the caller has not had `event`; a ping, which says nothing, is none."""
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
        """Raise RemoteProtocolError where the stream has ended without its last event: a proxy that
        gives up ends it as quietly as a server that is done."""
        if self._left > 0:
            raise httpx.RemoteProtocolError("the stream ended before its last event")

    def pause(self, result: httpx.Response | httpx.TransportError) -> float | None:
        """Seconds to wait before another attempt; None if `result` stands."""
        wait = pause(self._attempt, "POST", self.path, result, self._max_retries)
        self._attempt += 1
        return wait


def _ends(body: Get | Submit | Mapping[str, Any]) -> tuple[frozenset[str], int]:
    """The events of which a whole stream has so many."""
    match body:
        case Get():
            return frozenset({"value"}), 1
        case Submit(graph=True):
            return frozenset({"graph"}), 1
        case Submit():
            return frozenset({"value", "failed"}), max(1, len(body.watch))
    return frozenset(), 1  # OpenAI's streams end with [DONE]
