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


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response; `body` is None where it was too large to keep."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None

    @property
    def is_final(self) -> bool:
        """Whether the same request would get it again, as far as the server can say."""
        return self.status < 500 and self.status not in (408, 429)


@dataclass(slots=True)
class Entry:
    """A request under a key: who waits for its answer, and the answer once there is one.

    `changed` is set when a client comes or goes, `done` when the request has ended.
    """

    digest: bytes
    made: float
    clients: int = 1
    answer: Answer | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return len(self.answer.body or b"") if self.answer is not None else 0

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
        entry = self._entries[key] = Entry(digest, now)
        return entry

    def end(self, key: str, answer: Answer | None) -> None:
        """The request of `key` has ended; its answer is kept if it is final."""
        entry = self._entries[key]
        entry.answer = answer
        entry.done.set()
        self._bytes += entry.size
        if answer is None or not answer.is_final:
            self._forget(key)
        while self._bytes > self._config.max_bytes and self._evict():
            pass

    def _expire(self, now: float) -> None:
        for key, entry in list(self._entries.items()):
            if now - entry.made <= self._config.expiry_s:
                break  # the others are younger
            if entry.done.is_set():
                self._forget(key)

    def _evict(self) -> bool:
        """Forget the oldest entry whose request has ended; False if there is none."""
        ended = (key for key, entry in self._entries.items() if entry.done.is_set())
        key = next(ended, None)
        if key is not None:
            self._forget(key)
        return key is not None

    def _forget(self, key: str) -> None:
        self._bytes -= self._entries.pop(key).size
