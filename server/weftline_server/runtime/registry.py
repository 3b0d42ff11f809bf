"""All sessions of this server, found only by (tenant, id)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from weftline.contract.errors import ServerRestarted, StorageFull, UnknownSession
from weftline_server.journal.journal import Journal
from weftline_server.runtime.closed_sessions import ClosedConfig, ClosedSessions
from weftline_server.runtime.quotas import Quotas
from weftline_server.session.budget import Budget
from weftline_server.session.session import ServerSession

Make = Callable[[str, str, float, bool], ServerSession]

_OURS = re.compile("s_([0-9a-f]{8})_[0-9a-f]{32}")  # which run of the server, which session


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Limits: sessions per tenant, idle seconds of a session, and each session's budget. A session
    whose client promises heartbeats is closed after `heartbeat_s` without one. While
    `max_queued` primitives wait for engines, or `max_queued_of_tenant` of one tenant, no more
    calls are accepted from every tenant, or from this one. `max_bytes` bounds the values of all
    sessions of a tenant together.
    """

    max_sessions: int = 10_000
    idle_s: float = 3600.0
    heartbeat_s: float = 60.0
    max_queued: int = 100_000
    max_queued_of_tenant: int = 50_000
    max_bytes: int = 4 << 30
    budget: Budget = field(default_factory=Budget)
    closed: ClosedConfig = field(default_factory=ClosedConfig)


class NotHere(UnknownSession):
    """This server has no such session. Where several share a store, another one may have it.
    Clients know this error by the name of its base class.
    """

    def __init__(self, tenant: str, id: str) -> None:
        super().__init__(
            f"no session {id[:64]!r}: it was closed or has expired, so open another. A process "
            "that a debugger stops sends no heartbeats, and loses its sessions after heartbeat_s",
            param="session_id",
        )
        self.tenant = tenant
        self.id = id
        self.by_alias = False  # the route also takes the id that a client has chosen
        self.may_open = False  # the request opens the session with this id, if nobody has

    @property
    def type(self) -> str:
        return UnknownSession.__name__


class Registry:
    """Opens, finds and forgets sessions; ids are random and never used again."""

    def __init__(
        self,
        config: RegistryConfig,
        without: frozenset[str] = frozenset(),
        journal: Journal | None = None,
    ) -> None:
        self._config = config
        self._without = without
        self.journal = journal
        self.quotas = Quotas(
            config.max_queued,
            config.max_queued_of_tenant,
            config.max_bytes,
            config.max_sessions,
        )
        key = secrets.token_bytes(32) if journal is None else journal.salt_key
        self.salts: Mapping[str, str] = _Salts(key)  # by tenant
        self._sessions: dict[tuple[str, str], ServerSession] = {}
        self._closed = ClosedSessions(config.closed)
        self._by_id: dict[str, ServerSession] = {}  # for events of engines, which know no tenant
        self.opened: dict[str, int] = {}  # the sessions that each tenant has open here
        self._incarnation = secrets.token_hex(4) if journal is None else journal.incarnation

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ServerSession]:
        return iter(self._sessions.values())

    def open(self, tenant: str, now: float, *, stays: bool = True) -> ServerSession:
        """A new session. Raises Overloaded if the tenant has reached its limit."""
        self.quotas.admit_session(tenant, self.opened.get(tenant, 0))
        id = f"s_{self._incarnation}_{secrets.token_hex(16)}"
        session = self._made(id, tenant, now, stays)
        self._enter(session)
        return session

    @property
    def wall(self) -> float:
        """The time of day at zero of the sessions' clock. Servers that share a store have that of
        the store: the clocks of their machines may differ.
        """
        if self.journal is not None and self.journal.is_shared:
            return self.journal.clock.offset
        return time.time() - time.monotonic()

    def restore(self, stored: Callable[[Make], Iterable[ServerSession]]) -> list[ServerSession]:
        """The open ones of the sessions that were `stored`, which are found again from now on. The
        closed ones can be looked at.
        """
        found = list(stored(self._made))
        for session in found:
            if session.ended is None:
                self._enter(session)
        for session in reversed(found):  # the first to be dropped is the one that was closed first
            if session.ended is not None:
                self._closed.keep(session, session.ended)
        return [session for session in found if session.ended is None]

    def _made(self, id: str, tenant: str, now: float, stays: bool) -> ServerSession:
        budget = self._config.budget
        return ServerSession(id, tenant, now, self._without, budget, stays)

    def _enter(self, session: ServerSession) -> None:
        tenant = session.tenant
        self._sessions[tenant, session.id] = self._by_id[session.id] = session
        self.opened[tenant] = self.opened.get(tenant, 0) + 1

    def find(self, tenant: str, id: str) -> ServerSession:
        """The tenant's session. Raises UnknownSession, also for a session of another tenant.

        Raises ServerRestarted for one of an earlier server, of whatever tenant.
        """
        session = self._sessions.get((tenant, id))
        if session is None:
            made = _OURS.fullmatch(id)
            if made and made.group(1) != self._incarnation:
                raise ServerRestarted(
                    f"session {id} was lost when the server was restarted: open a new one, and "
                    "submit its calls again",
                    param="session_id",
                )
            raise NotHere(tenant, id)
        return session

    def look(self, tenant: str, id: str) -> ServerSession:
        """The tenant's session, to read it only: open, or closed a short time ago.

        Raises what `find` raises.
        """
        closed = self._closed.find(tenant, id)
        return closed if closed is not None else self.find(tenant, id)

    def listed(self, tenant: str) -> list[ServerSession]:
        """The tenant's sessions that can be looked at, the last opened first."""
        live = [one for key, one in self._sessions.items() if key[0] == tenant]
        found = [*live, *self._closed.of(tenant)]
        return sorted(found, key=lambda one: one.opened, reverse=True)

    def end(self, session: ServerSession, now: float) -> None:
        """Forget an open session. For some time it can still be looked at."""
        if self._sessions.pop((session.tenant, session.id), None) is not None:
            del self._by_id[session.id]
            self.opened[session.tenant] -= 1
            self.quotas.release(session)
            if self.journal is None or not self.journal.has_lost(session):
                self._closed.keep(session, now)

    def by_id(self, id: str) -> ServerSession | None:
        """The session that an engine's event is about; None if it has ended."""
        return self._by_id.get(id)

    async def kept(self, session: ServerSession, *, strict: bool = False) -> None:
        """Wait until what the session has so far is on disk, if this server keeps any.

        While the disk cannot be written, what runs goes on in memory. With `strict` a change is
        acknowledged, which raises StorageFull then. Where several servers share a store, it is
        always raised: another one may have taken over, and make another value.
        """
        if self.journal is None:
            return
        if strict:
            await self.journal.kept(session, may_have_moved=True)
            return
        with nullcontext() if self.journal.is_shared else suppress(StorageFull):
            await self.journal.kept(session)

    def busy(self) -> bool:
        """Whether a call of any session runs on an engine or is being sent to one."""
        return any(session.execution.under_way for session in self._sessions.values())

    def aged(self, now: float) -> list[ServerSession]:
        """Sessions that are older than their budget."""
        limit = self._config.budget.seconds
        return [session for session in self._sessions.values() if now - session.opened > limit]

    def expire(self, now: float) -> None:
        """Drop the closed sessions that were kept long enough."""
        self._closed.expire(now)

    @property
    def shortest_s(self) -> float:
        """The seconds after which the first sessions that no client names are closed."""
        return min(self._config.idle_s, self._config.heartbeat_s)

    def idle(self, now: float) -> list[ServerSession]:
        """Sessions that no client has named for the idle time and that no reader waits in."""
        return [
            session
            for session in self._sessions.values()
            if now - session.touched > self._patience(session) and not session.watch.readers
        ]

    def _patience(self, session: ServerSession) -> float:
        """For how long a session may be idle. Detached work is meant to outlive its client."""
        if not session.beats or any(run.detached for run in session.tasks.values()):
            return self._config.idle_s
        return self.shortest_s


class _Salts(dict[str, str]):
    """For each tenant the salt that separates its KV cache from all others.

    A salt has a fixed length, and cannot be guessed without the key. Tenants are those of the
    operator's keys, so they are few.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __missing__(self, tenant: str) -> str:
        code = hmac.new(self._key, tenant.encode(), hashlib.sha256)
        salt = self[tenant] = code.hexdigest()[:16]
        return salt
