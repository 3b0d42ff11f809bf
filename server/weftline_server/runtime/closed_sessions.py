"""Sessions that have ended and can still be looked at, within bounds of age, number and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weftline_server.session.session import ServerSession

# Measured on the null engine: what a session and each of its calls hold besides prompts and values.
SESSION_BYTES = 8192
CALL_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedConfig:
    """How many closed sessions of a tenant are kept, for how long, and about how many bytes all of
    them may hold. `keep_s` 0 keeps none.
    """

    keep_s: float = 900.0
    most: int = 1000
    bytes: int = 1 << 27


class ClosedSessions:
    """Closed sessions by (tenant, id), oldest first. The oldest are dropped at a bound."""

    def __init__(self, config: ClosedConfig) -> None:
        self._config = config
        self._sessions: dict[tuple[str, str], ServerSession] = {}
        self._count: dict[str, int] = {}
        self._bytes = 0

    def keep(self, session: ServerSession, now: float) -> None:
        """Keep a session that was closed. A session without any call is not worth a place."""
        self.expire(now)
        size = _size(session)
        config = self._config
        if not session.tasks or config.keep_s <= 0 or size > config.bytes:
            return
        if self._count.get(session.tenant, 0) >= config.most:
            self._drop(next(key for key in self._sessions if key[0] == session.tenant))
        while self._bytes + size > config.bytes:
            self._drop(next(iter(self._sessions)))
        self._sessions[session.tenant, session.id] = session
        self._count[session.tenant] = self._count.get(session.tenant, 0) + 1
        self._bytes += size

    def find(self, tenant: str, id: str) -> ServerSession | None:
        return self._sessions.get((tenant, id))

    def of(self, tenant: str) -> Iterator[ServerSession]:
        """The tenant's sessions, the last closed first."""
        return (one for key, one in reversed(self._sessions.items()) if key[0] == tenant)

    def expire(self, now: float) -> None:
        """Drop the sessions that were closed more than `keep_s` seconds ago."""
        oldest = now - self._config.keep_s
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if session.ended is not None and session.ended > oldest:
                return
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        session = self._sessions.pop(key)
        self._count[session.tenant] -= 1
        if not self._count[session.tenant]:
            del self._count[session.tenant]
        self._bytes -= _size(session)


def _size(session: ServerSession) -> int:
    spent = session.spent
    return spent.value_bytes + SESSION_BYTES + CALL_BYTES * spent.calls
