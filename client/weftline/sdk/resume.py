"""A streamed request that continues after its connection breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from weftline.contract.protocol import GetBody, SubmitBody, to_wire
from weftline.sdk.http import MAX_RETRIES, Known, idempotency, pause

RESUMED = "weftline-resumed"  # the header of a stream that the restarted server continues


class StreamedRequest:
    """A request that is sent again after a break, and the events that the caller has received.

    The stream of a variable continues after `Last-Event-ID`. A submit is sent again with the same
    idempotency key, and the server sends all its events again. Those that the caller has received
    are skipped by their number. After a restart the server cuts texts into other parts, so events
    are then skipped by their offsets. OpenAI's routes can do neither, so their streams are not
    continued.
    """

    def __init__(
        self,
        path: str,
        body: GetBody | SubmitBody | Mapping[str, Any],
        max_retries: int = MAX_RETRIES,
        known: Known | None = None,
    ) -> None:
        self.path = path
        self.content: Any = to_wire(body)
        self.began = False  # a response has begun, perhaps without an event so far
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

    def goes_on(self, response: httpx2.Response) -> bool:
        """Whether events follow. False if the server refused the request.

        Raises RemoteProtocolError if the server does not know the first attempt and has run the
        request again. Its new text must not be joined to the part that the caller has.
        """
        if self._known is not None:
            self._known.hear(response)
        if not response.is_success:
            return False
        if self._key and RESUMED in response.headers:
            self._had.again = True
        elif self._had.seen and self._key and "idempotency-replayed" not in response.headers:
            self._had.is_lost = True
            raise httpx2.RemoteProtocolError("the server has begun anew")
        self.began = True
        self._had.passed = 0
        return True

    def new(self, event: httpx2.ServerSentEvent) -> httpx2.ServerSentEvent | None:
        """The part of `event` that the caller has not received, or None if there is none.

        A ping has no data, so its result is None. Raises RemoteProtocolError if the caller has
        received a part of a text that the server has generated again.
        """
        if not event.data:
            return None
        if self._key and self._had.again:
            if self._had.is_anew(event):
                self._had.is_lost = True
                raise httpx2.RemoteProtocolError("the text was made anew")
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

        Without this check, a stream that a proxy cuts off would look complete.
        """
        if self._left > 0:
            raise httpx2.RemoteProtocolError("the stream ended before its last event")

    def pause(self, result: httpx2.Response | httpx2.TransportError) -> float | None:
        """Seconds to wait before another attempt; None if `result` is final."""
        if self._had.is_lost:
            return None
        most = self._max_retries
        wait = pause(self._attempt, "POST", self.path, result, most, self._known)
        self._attempt += 1
        return wait


class Had:
    """What the caller has received of a stream: the end of each text, and which values.

    The id of an event has the variable, the attempt that generated the text, and the offset in
    characters after the event's text.
    """

    def __init__(self) -> None:
        self.again = False  # the server was restarted, and sends the whole stream again
        self.is_lost = False  # the stream cannot be continued
        self.seen = 0  # events that the caller has received
        self.passed = 0  # how many of them were sent again in this attempt
        self._begun = False
        self._texts: dict[str, tuple[str, int]] = {}  # variable → attempt, end
        self._ended: set[str] = set()

    def note(self, event: httpx2.ServerSentEvent) -> None:
        """Note that the caller receives `event`."""
        self._begun |= event.event == "submitted"
        variable, attempt, end = _place(event.id)
        if event.event == "part":
            self._texts[variable] = attempt, end
        elif event.event in ("value", "failed"):
            self._ended.add(variable)

    def is_anew(self, event: httpx2.ServerSentEvent) -> bool:
        """Whether the caller has a part of a text of another attempt than that of `event`."""
        variable, attempt, _ = _place(event.id)
        had, end = self._texts.get(variable, (attempt, 0))
        return event.event == "part" and end > 0 and had != attempt

    def left_of(self, event: httpx2.ServerSentEvent) -> httpx2.ServerSentEvent | None:
        """The part of `event` that the caller has not received, or None."""
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
        return httpx2.ServerSentEvent(event.event, json.dumps(data), event.id, event.retry)


def _place(id: str) -> tuple[str, str, int]:
    """The variable, the attempt and the offset in the id of an event."""
    variable, _, place = id.rpartition(" ")
    attempt, _, end = place.rpartition(".")
    return variable, attempt, int(end) if end.isdecimal() else 0


def _ends(body: GetBody | SubmitBody | Mapping[str, Any]) -> tuple[frozenset[str], int]:
    """The kinds of events that end a stream, and how many of them a whole stream has."""
    match body:
        case GetBody():
            return frozenset({"value"}), 1
        case SubmitBody(graph=True):
            return frozenset({"graph"}), 1
        case SubmitBody():
            return frozenset({"value", "failed"}), max(1, len(body.watch))
    return frozenset(), 1  # one of OpenAI's streams ends with [DONE]
