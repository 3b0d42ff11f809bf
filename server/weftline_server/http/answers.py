"""Answers that are kept by idempotency key, for a while and up to a size, so that they can be given
again; synchronous, and told the time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from weftline.errors import KeyReused, Overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersConfig:
    """How many seconds an answer is kept, and how many keys and bytes of answers a tenant has.

    An answer of more than `max_answer` bytes is not kept. A request goes on for `reconnect_s` after
    its client has left, so that a client whose connection broke can ask again.
    """

    expiry_s: float = 600.0
    max_keys: int = 10_000
    max_bytes: int = 16 << 20
    max_answer: int = 1 << 20
    reconnect_s: float = 1.0


class Answer:
    """An HTTP response as far as it has been sent; `body` is None once it is too large to keep."""

    def __init__(self, max_bytes: int) -> None:
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.body: bytearray | None = bytearray()
        self.whole = False
        self._max_bytes = max_bytes
        self._grown = asyncio.Event()

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events, which is given while it comes."""
        kind = dict(self.headers).get(b"content-type", b"")
        return kind.startswith(b"text/event-stream")

    @property
    def is_final(self) -> bool:
        """Whether the same request would get it again, as far as the server can say."""
        return self.whole and self.status < 500 and self.status not in (408, 429)

    def begin(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.status, self.headers = status, headers
        self.wake()

    def add(self, part: bytes, *, last: bool) -> None:
        """Append to the body."""
        self.whole = last
        if self.body is not None:
            self.body += part
            if len(self.body) > self._max_bytes:
                self.body = None
        self.wake()

    def wake(self) -> None:
        """Wake whoever waits in `grown`."""
        self._grown.set()
        self._grown = asyncio.Event()

    async def grown(self) -> None:
        """Return at the next change."""
        await self._grown.wait()


@dataclass(slots=True)
class Entry:
    """A request under a key: its answer, and how many clients wait for it.

    `changed` is set when a client comes or goes. `ended` says that the request has ended, `kept`
    that its answer may then be given again.
    """

    digest: bytes
    made: float
    answer: Answer
    clients: int = 1
    ended: bool = False
    kept: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return len(self.answer.body or b"") if self.kept else 0

    def count(self, by: int) -> None:
        """One client more, or one less."""
        self.clients += by
        self.changed.set()


class Answers:
    """The entries of one tenant, the oldest first."""

    def __init__(self, config: AnswersConfig) -> None:
        self._config = config
        self._entries: dict[str, Entry] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: str, digest: bytes, now: float) -> Entry | None:
        """The entry of `key`, if there is one. Raises KeyReused if its request was another."""
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
        """A new entry, for a request that starts now. Raises Overloaded if all keys are in use."""
        if len(self._entries) >= self._config.max_keys and not self._evict():
            raise Overloaded(
                f"{len(self._entries)} requests with an Idempotency-Key are running: try again "
                "later",
                retry_after_s=1.0,
            )
        entry = self._entries[key] = Entry(digest, now, Answer(self._config.max_answer))
        return entry

    def end(self, key: str, *, given_up: bool = False) -> None:
        """The request of `key` has ended; its answer is kept if it is final and not `given_up`."""
        entry = self._entries[key]
        entry.ended, entry.kept = True, entry.answer.is_final and not given_up
        entry.answer.wake()
        self._bytes += entry.size
        if not entry.kept:
            self._forget(key)
        while self._bytes > self._config.max_bytes and self._evict():
            pass

    def _expire(self, now: float) -> None:
        for key, entry in list(self._entries.items()):
            if now - entry.made <= self._config.expiry_s:
                break  # the others are younger
            if entry.ended:
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
