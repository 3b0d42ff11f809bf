"""A streamed request that continues after its connection breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from weftline.http import MAX_RETRIES, Known, idempotency, pause
from weftline.protocol import Get, Submit, to_wire

RESUMED = "weftline-resumed"  # the header of a stream that another run of the server goes on with


class StreamedRequest:
    """How a request is sent and sent again, and which events the caller has already received.

    The stream of a variable continues after `Last-Event-ID`. A submit is sent again with the same
    idempotency key, and gives all its events again. Those that the caller has had are skipped.
    After a restart the server divides texts in another way, so they are skipped by what they carry.
    OpenAI's routes can do neither, so a broken stream of theirs stays broken.
    """

    def __init__(
        self,
        path: str,
        body: Get | Submit | Mapping[str, Any],
        max_retries: int = MAX_RETRIES,
        known: Known | None = None,
    ) -> None:
        self.path = path
        self.content: Any = to_wire(body)
        self.began = False  # an answer has begun, perhaps without an event so far
        self._key = idempotency("POST", path)
        self._max_retries = max_retries
        self._known = known
        self._had = Had()
        self._attempt = 0  # attempts since the last new event
        self._ends, self._left = _ends(body)
        self._last_id = ""

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
        if self._known is not None:
            self._known.hear(response)
        if not response.is_success:
            return False
        if self._key and RESUMED in response.headers:
            self._had.again = True
        elif self._had.seen and self._key and "idempotency-replayed" not in response.headers:
            self._had.is_lost = True
            raise httpx.RemoteProtocolError("the server has begun anew")
        self.began = True
        self._had.passed = 0
        return True

    def new(self, event: ServerSentEvent) -> ServerSentEvent | None:
        """What the caller has not had yet of `event`; None for nothing.

        A ping carries nothing, so it is never new. Raises RemoteProtocolError for a text of which
        the caller has had a part, and which was made anew.
        """
        if not event.data:
            return None
        if self._key and self._had.again:
            if self._had.is_anew(event):
                self._had.is_lost = True
                raise httpx.RemoteProtocolError("the text was made anew")
            event_left = self._had.left_of(event)
            if event_left is None:
                return None
            event = event_left
        elif self._key and self._had.passed < self._had.seen:
            self._had.passed += 1
            return None
        self._had.note(event)
        self._had.seen += 1
        self._had.passed = self._had.seen
        self._attempt = 0
        self._last_id = event.id
        self._left -= event.event in self._ends or event.data == "[DONE]"
        return event

    def check_whole(self) -> None:
        """Raise RemoteProtocolError if the stream ended before its last event.

        A proxy that gives up ends a stream in the same way as a server that is done.
        """
        if self._left > 0:
            raise httpx.RemoteProtocolError("the stream ended before its last event")

    def pause(self, result: httpx.Response | httpx.TransportError) -> float | None:
        """Seconds to wait before another attempt; None if `result` is final."""
        if self._had.is_lost:
            return None
        most = self._max_retries
        wait = pause(self._attempt, "POST", self.path, result, most, self._known)
        self._attempt += 1
        return wait


class Had:
    """What the caller has had of a stream, by variable: how far its text, and which values.

    The id of an event names the variable, the attempt that made its text, and the offset after it.
    """

    def __init__(self) -> None:
        self.again = False  # the server was restarted, and gives all of it again
        self.is_lost = False  # it cannot be continued
        self.seen = 0  # events that the caller has had
        self.passed = 0  # those of them that came again in this attempt
        self._begun = False
        self._texts: dict[str, tuple[str, int]] = {}  # variable → attempt, end
        self._ended: set[str] = set()

    def note(self, event: ServerSentEvent) -> None:
        """The caller gets `event`."""
        self._begun |= event.event == "submitted"
        variable, attempt, end = _place(event.id)
        if event.event == "part":
            self._texts[variable] = attempt, end
        elif event.event in ("value", "failed"):
            self._ended.add(variable)

    def is_anew(self, event: ServerSentEvent) -> bool:
        """Whether the caller has had a part of a text that `event` does not go on with."""
        variable, attempt, _ = _place(event.id)
        had, end = self._texts.get(variable, (attempt, 0))
        return event.event == "part" and end > 0 and had != attempt

    def left_of(self, event: ServerSentEvent) -> ServerSentEvent | None:
        """The part of `event` that the caller has not had."""
        variable, attempt, end = _place(event.id)
        if (event.event == "submitted" and self._begun) or variable in self._ended:
            return None
        _, had = self._texts.get(variable, (attempt, 0))
        if event.event != "part" or not had:
            return event
        if end <= had:
            return None
        data = json.loads(event.data)
        data["text"] = data["text"][max(0, had - data["offset"]) :]
        data["offset"] = max(had, data["offset"])
        return ServerSentEvent(event.event, json.dumps(data), event.id, event.retry)


def _place(id: str) -> tuple[str, str, int]:
    """The variable, the attempt and the offset that the id of an event names."""
    variable, _, place = id.rpartition(" ")
    attempt, _, end = place.rpartition(".")
    return variable, attempt, int(end) if end.isdecimal() else 0


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
