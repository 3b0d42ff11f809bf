"""The responses that are kept by idempotency key, within limits of age, number and size.

All of it is synchronous; the time is an argument.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from weftline.contract.errors import KeyReused, Overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesConfig:
    """The seconds that a response is kept, and a tenant's limits of keys and of bytes of responses.

    A response of more than `max_response` bytes is not kept. A request goes on for `reconnect_s`
    seconds after its client has left, so that a client whose connection broke can repeat it.
    """

    expiry_s: float = 600.0
    max_keys: int = 10_000
    max_bytes: int = 16 << 20
    max_response: int = 1 << 20
    reconnect_s: float = 1.0


class RecordedResponse:
    """An HTTP response as far as it was sent; `body` is None once it is too large to keep."""

    def __init__(self, max_bytes: int) -> None:
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.body: bytearray | None = bytearray()
        self.whole = False
        self._max_bytes = max_bytes
        self._grown: asyncio.Event | None = None  # set at the next change, while a task waits

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events, which repetitions get while it is generated."""
        kind = dict(self.headers).get(b"content-type", b"")
        return kind.startswith(b"text/event-stream")

    @property
    def is_final(self) -> bool:
        """Whether the same request would most likely get the same response again.

        The servers of a store tell each other by 421 that a session is elsewhere. No client may see
        that.
        """
        return self.whole and self.status < 500 and self.status not in (408, 421, 429)

    def begin(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Set the status and the headers, which come first."""
        self.status, self.headers = status, headers
        self.wake()

    def add(self, part: bytes, *, last: bool) -> None:
        """Append `part` to the body."""
        self.whole = last
        if self.body is not None:
            self.body += part
            if len(self.body) > self._max_bytes:
                self.body = None
        self.wake()

    def wake(self) -> None:
        """Wake every task that waits in `grown`."""
        if self._grown is not None:
            self._grown.set()
            self._grown = None

    async def grown(self) -> None:
        """Return at the next change."""
        if self._grown is None:
            self._grown = asyncio.Event()
        await self._grown.wait()


@dataclass(slots=True)
class Entry:
    """A request under a key: its response, and the number of clients that wait for it.

    `made` is when it began. `changed` is set when a client arrives or leaves. `ended` says that the
    request has ended, `kept` that its response was kept for repetitions.
    """

    digest: bytes
    made: float
    response: RecordedResponse
    clients: int = 1
    ended: bool = False
    kept: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        """The bytes of the response that is kept."""
        return len(self.response.body or b"") if self.kept else 0

    def count(self, by: int) -> None:
        """Add `by` to the number of clients that wait."""
        self.clients += by
        self.changed.set()


class Responses:
    """The entries of one tenant, the oldest first."""

    def __init__(self, config: ResponsesConfig) -> None:
        self._config = config
        self._entries: dict[str, Entry] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: str, digest: bytes, now: float) -> Entry | None:
        """The entry of `key`, if any. Raises KeyReused if it belongs to another request."""
        self._expire(now)
        entry = self._entries.get(key)
        if entry is not None and entry.digest != digest:
            raise KeyReused(
                f"Idempotency-Key {key[:64]!r} was sent with another request: use a new key for "
                "each request",
                param="Idempotency-Key",
            )
        return entry

    def begin(self, key: str, digest: bytes, now: float) -> Entry:
        """A new entry for a request that starts now. Raises Overloaded if every key is in use."""
        if len(self._entries) >= self._config.max_keys and not self._evict():
            raise Overloaded(
                f"{len(self._entries)} requests with an Idempotency-Key are running: try again "
                "later",
                retry_after_s=1.0,
            )
        entry = self._entries[key] = Entry(digest, now, RecordedResponse(self._config.max_response))
        return entry

    def end(self, key: str, *, abandoned: bool = False) -> None:
        """End the request of `key`. Keep its response if it is final and was not `abandoned`."""
        entry = self._entries[key]
        entry.ended, entry.kept = True, entry.response.is_final and not abandoned
        entry.response.wake()
        self._bytes += entry.size
        if not entry.kept:
            self._forget(key)
        while self._bytes > self._config.max_bytes and self._evict():
            pass

    def _expire(self, now: float) -> None:
        old: list[str] = []
        for key, entry in self._entries.items():
            if now - entry.made <= self._config.expiry_s:
                break  # the rest are younger
            if entry.ended:
                old.append(key)
        for key in old:
            self._forget(key)

    def _evict(self) -> bool:
        """Forget the oldest entry whose request has ended; False if there is none."""
        ended = (key for key, entry in self._entries.items() if entry.ended)
        key = next(ended, None)
        if key is not None:
            self._forget(key)
        return key is not None

    def _forget(self, key: str) -> None:
        self._bytes -= self._entries.pop(key).size
