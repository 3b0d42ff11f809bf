"""One server among several: it renews its lease, adopts orphans, and finds the owners of sessions.

What to do is decided in `lease` and `takeover`; this module asks the database and acts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from weftline.contract.errors import InvalidRequest, StorageFull
from weftline_server.cluster.card import Card, Peer
from weftline_server.cluster.database import FAILURES, ClusterDatabase, ClusterView
from weftline_server.cluster.route import KeyPlace, SessionPlace
from weftline_server.cluster.session_lease import Lease, LeaseConfig, LeaseState
from weftline_server.cluster.shared_journal import Make, SharedJournal
from weftline_server.cluster.takeover import (
    MOST_DEATHS,
    SessionTrial,
    is_quarantined,
    next_trial,
    share,
    to_fence,
)
from weftline_server.journal.fence import Fenced
from weftline_server.journal.journal import Key
from weftline_server.journal.replay import Unreadable
from weftline_server.journal.store import Stored
from weftline_server.runtime.tenant_tally import TenantTally
from weftline_server.session.session import ServerSession

log = logging.getLogger("weftline.cluster")

RENEWALS = 5  # in the time of a lease
LOOK_S = 1.0  # between two renewals at most: a server that ends hands its sessions over
MOVES_S = 5.0  # from the end of a lease until its sessions are restored elsewhere
AGAIN_S = 0.5  # between two attempts to join again
_CHOSEN = "\x01"  # before an id that a client chose, among the keys; no client's key has it


Restored = Callable[[Make], Iterable[ServerSession]]


class TallyExchange(Protocol):
    """What tenants have here, and elsewhere."""

    def tallies(self) -> Mapping[str, TenantTally]:
        """What each tenant has here."""

    def hear(self, elsewhere: Mapping[str, TenantTally]) -> None:
        """Take note of what each tenant has at all other servers together."""


class SessionHost(Protocol):
    """What runs sessions."""

    def resume(self, stored: Restored) -> None:
        """Go on with sessions that were made by this function; closed ones can be looked at."""

    def abandon(self) -> None:
        """Forget the sessions that the journal has lost."""

    @property
    def exchange(self) -> TallyExchange:
        """What it knows of its tenants."""


@dataclass(slots=True)
class _Now:
    """What the last answers of the database said."""

    lease: Lease
    view: ClusterView = field(default_factory=lambda: ClusterView((), 0.0, False))
    is_away: bool = False
    told: dict[str, TenantTally] = field(default_factory=dict)  # what the others know


class ClusterMember:
    """The membership of this server. All methods belong to the event loop."""

    def __init__(
        self,
        config: LeaseConfig,
        database: ClusterDatabase,
        journal: SharedJournal,
        card: Card,
        secret: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._database = database
        self._journal = journal
        self._time = now
        self._now: _Now | None = None
        self._card = card
        self.secret = secret  # that the servers of the store share
        self._has_left = False
        self.is_retired = False  # it adopts nothing more, and opens nothing
        self._host: SessionHost | None = None
        self._renewing = asyncio.Lock()
        self._orphans = asyncio.Event()
        self._fenced: dict[int, asyncio.Event] = {}  # of other servers, whose end is awaited
        self._tasks: list[asyncio.Task[None]] = []
        self.chosen: set[tuple[str, str]] = set()  # ids of clients that this server may open

    @property
    def patience_s(self) -> float:
        """How long a request waits for a session that moves: for the lease of its owner to end, and
        for another server to restore it.
        """
        return self._config.lease_s + MOVES_S

    @property
    def number(self) -> int:
        """Of this server, since it has joined."""
        assert self._now is not None
        return self._now.lease.number

    async def join(self, models: str) -> None:
        """Get a lease, as a server of these models. Raises InvalidRequest where the other servers
        do not fit.
        """
        self._card = replace(self._card, models=models)
        try:
            await self._database.open()
            await self._join(self._journal.run)
        except (InvalidRequest, *FAILURES) as error:
            # A worker of an open pool may not end when it is cancelled: the process then hung.
            await self._database.close()
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(
                f"cannot use the database of the store: {error}", param="store"
            ) from error
        self._journal.own(self.number, self._config.lease_s)

    def run(self, host: SessionHost) -> None:
        """Renew and adopt from now on."""
        self._host = host
        self._tasks = [
            asyncio.create_task(self._renew_forever()),
            asyncio.create_task(self._adopt_forever()),
        ]

    async def retire(self) -> None:
        """Adopt nothing more, and open nothing: the server ends soon."""
        self.is_retired = True
        for task in self._tasks[1:]:
            task.cancel()
        try:
            await self._database.retire(self.number)
        except FAILURES as error:
            log.warning("the others are not told that this server ends: %s", error)

    async def look(self) -> None:
        """Renew now: the other servers, or what there is to adopt, have changed."""
        async with self._renewing:
            await self._renew()

    async def leave(self) -> None:
        """Let the others adopt what is here. All of it is written."""
        if self._has_left:
            return
        self._has_left = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._now is not None:
            try:
                await self._database.leave(self.number)
            except FAILURES as error:
                log.warning("the others wait until the lease of this server expires: %s", error)
        await self._database.close()

    async def assure(self) -> None:
        """Return when this server knows what it owns. After a long pause it asks the database,
        unless that is known not to answer: what needs it is refused then, and the rest goes on.
        """
        if not (self._is_held() or self.is_away):
            async with self._renewing:
                if not (self._is_held() or self.is_away):
                    await self._renew()

    @property
    def is_away(self) -> bool:
        """Whether the database did not answer when it was last asked."""
        return self._now is not None and self._now.is_away

    async def place(self, tenant: str, id: str, *, is_alias: bool) -> SessionPlace | None:
        """Where the tenant's session is stored to be. Raises StorageFull."""
        self._check()
        try:
            return await self._database.sessions.place(tenant, id, is_alias=is_alias)
        except FAILURES as error:
            raise _away() from error

    def fenced(self, server: int) -> asyncio.Event:
        """Set when this server knows that the other one has lost its lease."""
        return self._fenced.setdefault(server, asyncio.Event())

    @property
    def others(self) -> list[Peer]:
        """The other servers that hold their leases, as far as this one knows."""
        peers = () if self._now is None else self._now.view.peers
        return [peer for peer in peers if peer.number != self.number and peer.left_s > 0]

    @property
    def heirs(self) -> list[Peer]:
        """The other servers that go on when this one ends."""
        return [peer for peer in self.others if not peer.ending]

    async def claim_key(self, key: Key) -> KeyPlace | None:
        """None where this server handles the request; else the server that does."""
        self._check()
        try:
            return await self._database.sessions.take_key(
                self.number, key.tenant, key.key, key.digest
            )
        except FAILURES as error:
            raise _away() from error

    def knows(self, key: Key) -> bool:
        """Whether what a request with this key did at another server is here."""
        return self._journal.knows(key)

    async def claim_alias(self, tenant: str, alias: str) -> KeyPlace | None:
        """None where this server may open a session with this id of a client."""
        found = await self.claim_key(Key(tenant, _CHOSEN + alias, b""))
        if found is not None and found.server != self.number:
            return found
        self.chosen.add((tenant, alias))
        return None

    async def view(self, one: Stored) -> None:
        """Look at a closed session from here, and know the keys of its requests."""
        host = self._host
        assert host is not None
        self._check()
        try:
            records, keys = await self._database.sessions.contents(one.number)
        except FAILURES as error:
            raise _away() from error
        self._journal.remember(one, keys)
        try:
            host.resume(lambda make: [self._journal.viewed(one, records, make)])
        except Unreadable:
            log.exception("a closed session cannot be shown")

    def _check(self) -> None:
        """Raise StorageFull at once where the database is known not to answer."""
        if self.is_away:
            raise _away()

    def _is_held(self) -> bool:
        return self._now is not None and (self._now.lease.state(self._time()) is LeaseState.HELD)

    async def _join(self, number: int | None) -> None:
        sent, lease_s = self._time(), self._config.lease_s
        number = await self._database.join(self._card, number, lease_s)
        self._now = _Now(Lease(number, lease_s, sent))

    async def _renew_forever(self) -> None:
        while True:
            async with self._renewing:
                await self._renew()
            await asyncio.sleep(min(self._config.lease_s / RENEWALS, LOOK_S))

    async def _renew(self) -> None:
        """Renew the lease, or find that it was taken over. Without the database nothing changes."""
        now, lease_s = self._now, self._config.lease_s
        assert now is not None
        sent = self._time()
        try:
            now.view = await self._database.renew(now.lease.number, lease_s, MOST_DEATHS)
            now.lease = now.lease.renewed(sent)
            await self._exchange(now)
            ended = to_fence(self.number, now.view.peers, now.view.steady_s, lease_s)
            if ended and await self._database.fence(ended):
                log.warning("servers %s do not renew their leases: their sessions move", ended)
                self._orphans.set()
        except Fenced:
            await self._lost(now)
            return
        except FAILURES as error:
            if not now.is_away:
                log.error("the lease cannot be renewed: %s", error)
            now.is_away = True
            return
        if now.is_away:
            log.warning("the lease is renewed again")
        now.is_away = False
        for server in self._fenced.keys() - {peer.number for peer in now.view.peers}:
            self._fenced.pop(server).set()
        if now.view.has_orphans:
            self._orphans.set()

    async def _exchange(self, now: _Now) -> None:
        """Tell the others what tenants have here, and hear what they have there."""
        if self._host is None:
            return
        exchange = self._host.exchange
        here = exchange.tallies()
        changed = {name: one for name, one in here.items() if now.told.get(name) != one}
        exchange.hear(await self._database.exchange(now.lease.number, changed))
        now.told |= changed

    async def _lost(self, now: _Now) -> None:
        """Forget all sessions, and join under a new number."""
        assert self._host is not None
        log.error("another server has taken over the sessions of this one")
        now.lease = now.lease.fenced()
        self._journal.lose()
        self._host.abandon()
        self.chosen.clear()
        while self._now is now:
            try:
                await self._join(None)
            except (*FAILURES, InvalidRequest) as error:
                if not now.is_away:
                    log.error("cannot join the other servers again: %s", error)
                now.is_away = True
                await asyncio.sleep(AGAIN_S)
        await self._journal.recover(self.number, self._config.lease_s)

    async def _adopt_forever(self) -> None:
        while True:
            await self._orphans.wait()
            self._orphans.clear()
            try:
                while (trial := await self._next_trial()) is not None:
                    await self._try(trial)
            except FAILURES as error:
                log.warning("sessions cannot be adopted now: %s", error)

    async def _next_trial(self) -> SessionTrial | None:
        """What to adopt next, if anything."""
        now = self._now
        if now is None or not self._is_held():
            return None
        living = [one.number for one in now.view.peers if one.left_s > 0 and not one.ending]
        if now.lease.number not in living:
            return None  # the view is that before this server joined again
        orphans = share(
            now.lease.number, living, await self._database.sessions.orphans(MOST_DEATHS)
        )
        convicted = [one.number for one in orphans if is_quarantined(one.deaths)]
        if convicted:
            log.error("%d servers died of these sessions, which rest: %s", MOST_DEATHS, convicted)
            await self._database.sessions.claim(now.lease.number, convicted)
        return next_trial(orphans)

    async def _try(self, trial: SessionTrial) -> None:
        """Adopt the sessions, and note that this server has lived."""
        me, adopted = self.number, list[int]()
        for one, deaths in await self._database.sessions.claim(me, trial.sessions):
            if not is_quarantined(deaths) and await self._adopted(one):
                adopted.append(one.number)
        await asyncio.sleep(trial.seconds)
        await self._database.sessions.acquit(me, adopted)

    async def _adopted(self, one: Stored) -> bool:
        assert self._host is not None
        records, keys = await self._database.sessions.contents(one.number)
        try:
            self._host.resume(lambda make: [self._journal.adopted(one, records, keys, make)])
        except Unreadable:
            log.exception("a session cannot be restored")
            return False
        return True


def _away() -> StorageFull:
    return StorageFull(
        "the server cannot reach its store of sessions: try again later", retry_after_s=2.0
    )
