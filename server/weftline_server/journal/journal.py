"""The journal of this server's sessions, on the event loop: what is on disk, and what waits for it.

A request is acknowledged, and a value is given to a client, only when all that led to it is on
disk. While the disk cannot be written nothing new is accepted; what runs goes on in memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from weftline.contract.errors import EngineUnavailable, KeyReused, StorageFull
from weftline_server.journal.backend import SessionStore, opened_store
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.fence import SessionMoved
from weftline_server.journal.records import Clock, Noted, noted
from weftline_server.journal.replay import Opened, Unreadable, replay, resumed
from weftline_server.journal.store import Close, Drop, JournalStoreConfig, Keyed, Open
from weftline_server.journal.writer import Item, SessionRecord, Sweep, WriteProgress, Writer
from weftline_server.session import events as ev
from weftline_server.session.resumption import runs_once
from weftline_server.session.session import ServerSession

log = logging.getLogger("weftline.journal")

ACK_S = 10.0  # the longest wait for a disk that does not answer
KEYS_S = 600.0  # idempotency keys are kept as long as responses are
# Records that no request waits for are written this much later, with what has come meanwhile. A
# commit for each end of a chain's five calls made the server's CPU 1.37 times that without a
# store.
LINGER_S = 0.01


@dataclass(slots=True)
class RecordTrack:
    """A session that is recorded: its number in the store, and how many entries lead up to its last
    record. `opening` is written together with its first record, or when it has to be kept. A
    session that is `gone` goes on at another server.
    """

    number: int
    opening: Open | None = None
    mark: int = 0
    closed: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """A request's idempotency key, and the digest of what it asks for."""

    tenant: str
    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a request with this key did in an earlier run of the server."""

    session: str
    tasks: tuple[str, ...]
    digest: bytes


class Journal:
    """Records sessions in a store. All methods belong to the event loop."""

    is_shared = False  # by several servers

    def __init__(self, config: JournalStoreConfig, now: Callable[[], float]) -> None:
        cipher = Cipher.of(config.key_file)
        self._store: SessionStore = opened_store(config, cipher)
        self._cipher = cipher
        self._now = now
        self.clock = Clock(self._store.wall_time() - now(), now())
        self.run = self._store.next_run()
        self.incarnation = self._store.meta("incarnation", secrets.token_hex(4))
        self.salt_key = self._salt_key()  # from which the salts of tenants' caches are made
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: Writer | None = None
        self._tracks: WeakKeyDictionary[ServerSession, RecordTrack] = WeakKeyDictionary()
        self._number = self._store.last_number()
        self._earlier: dict[tuple[str, str], Earlier] = {}
        # The ids of open sessions by tenant and the id that the client chose.
        self.aliases: dict[tuple[str, str], str] = {}
        self._ledger = WriteLedger()
        if not self.is_shared:
            self._know()

    def _salt_key(self) -> bytes:
        """Another one in each run: the engines' caches end with it."""
        return secrets.token_bytes(32)

    def _know(self) -> None:
        """Read the keys and the names of an earlier run."""
        opened = [one.opened for one in self._store.sessions(closed=False)]
        self.aliases = {(one.tenant, one.alias): one.id for one in opened if one.alias}
        since = self.clock.wall(self._now()) - KEYS_S
        self._earlier = {
            (one.tenant, one.key): earlier_of(one, id) for one, id in self._store.keys(since)
        }

    def start(self) -> None:
        """Write from now on. What is read from the store is read before."""
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(self._store, self.clock, self._tell)

    async def close(self) -> None:
        """Record nothing more, and write what is there."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.close)
            self._ledger.end(_ending())
        elif self._loop is None:
            self._store.close()

    def stored(
        self, make: Callable[[str, str, float, bool], ServerSession]
    ) -> Iterator[ServerSession]:
        """Every session in the store as it was, the open ones first. Those that cannot be read are
        logged and left out.
        """
        for closed in (False, True):
            for one in self._store.sessions(closed=closed):
                try:
                    records = self._store.records(one.number)
                    session = replay(one.opened, records, self.clock, make)
                except Unreadable:
                    log.exception("a session cannot be restored")
                    continue
                if not closed:
                    self._tracks[session] = RecordTrack(one.number)
                yield session

    def resumed(self) -> ev.SessionResumed:
        """The event with which a restored session goes on."""
        return resumed(self._now(), self.run)

    def opened(self, session: ServerSession, alias: str) -> None:
        """Record a session from now on."""
        self._number += 1
        at = self.clock.wall(session.opened)
        opened = Opened(session.tenant, session.id, alias, at, session.stays)
        self._tracks[session] = RecordTrack(self._number, Open(self._number, opened))

    def note(
        self,
        session: ServerSession,
        event: ev.SessionEvent,
        actions: list[ev.Action],
        key: Key | None = None,
    ) -> None:
        """Record an event that the session has handled, if it is of those that are recorded.

        The `key` of the request that submitted tasks is on disk with them, or neither is: a server
        that was killed between the two would take the submit again when it is sent again.
        """
        track = self._tracks.get(session)
        if track is None or track.closed or track.gone or self._writer is None:
            return
        found = noted(session, event, actions)
        if found is None:
            return
        items: list[Item] = [SessionRecord(track.number, found)]
        at = self.clock.wall(event.now)
        if key is not None and isinstance(event, ev.TasksSubmitted):
            tasks = " ".join([task.id for task in event.tasks])
            items.append(Keyed(track.number, key.tenant, key.key, key.digest, tasks, at))
        if isinstance(event, ev.SessionClosed):
            track.closed = True
            items.append(Close(track.number, at) if session.tasks else Drop(track.number))
        self._put(track, *items)
        match event:  # a restarted server that finds no end of such a one fails it (Interrupted)
            case ev.PrimitiveFinished(primitive=id) | ev.PrimitiveFailed(primitive=id):
                if runs_once(session.execution, id):
                    self._hurry()

    def earlier(self, key: Key) -> Earlier | None:
        """What an earlier run of the server did for this key. Raises KeyReused."""
        found = self._earlier.get((key.tenant, key.key))
        if found is not None and found.digest != key.digest:
            raise KeyReused(
                f"Idempotency-Key {key.key[:64]!r} was sent with another request: use a new key "
                "for each request",
                param="Idempotency-Key",
            )
        return found

    def has_lost(self, session: ServerSession) -> bool:
        """Whether another server goes on with the session."""
        track = self._tracks.get(session)
        return track is not None and track.gone

    async def begin(self, session: ServerSession, primitive: str) -> None:
        """Record that an engine may have begun a primitive that must not run twice.

        While the store cannot be written this waits: the primitive did nothing yet, and may begin
        later. Raises StorageFull where the session was given up, EngineUnavailable where the server
        ends, and SessionMoved.
        """
        track = self._tracks.get(session)
        if track is None:
            return
        if track.gone:
            raise SessionMoved(session)
        if self._writer is None:
            raise _ending()
        sent = ev.PrimitiveSent(now=self._now(), primitive=primitive, engine="")
        self._put(track, SessionRecord(track.number, Noted(sent)))
        self._hurry()
        await self._ledger.written(track.mark, track.number)

    def admit(self, session: ServerSession | None = None) -> None:
        """Raise StorageFull while nothing can be written, unless this session is not kept."""
        if session is None or session in self._tracks:
            self._ledger.admit()

    @property
    def failure(self) -> str:
        """Why nothing can be written; "" if it can."""
        return self._ledger.error

    async def kept(self, session: ServerSession, *, may_have_moved: bool = False) -> None:
        """Return when all of the session so far is on disk. Raises StorageFull.

        Raises EngineUnavailable where the session has ended only because the server does, and
        SessionMoved where another server goes on with it, which may give other values. What this
        server has recorded until then is acknowledged with `may_have_moved`.
        """
        track = self._tracks.get(session)
        if track is None:
            return
        if track.gone and not may_have_moved:
            raise SessionMoved(session)
        if track.opening is not None:
            self._put(track)
        if self._writer is None and session.ended is not None and not (track.closed or track.gone):
            raise _ending()
        if not self._ledger.has(track.mark):
            self._hurry()
        await self._ledger.reached(track.mark, track.number)

    def sweep(self) -> None:
        """Delete what is too old."""
        if self._writer is not None:
            self._ledger.put += 1
            self._writer.put((Sweep(self.clock.wall(self._now()), KEYS_S),))
            self._writer.wake()

    def _put(self, track: RecordTrack, *items: Item) -> None:
        """Write these items in one transaction."""
        if track.gone or self._writer is None or self._loop is None:
            return  # the server ends: its sessions go on in its next run
        if track.opening is not None:
            items = (track.opening, *items)
            track.opening = None
        self._ledger.put += 1
        track.mark = self._ledger.put
        self._writer.put(items)
        if not self._ledger.lingers:
            self._ledger.lingers = True
            self._loop.call_later(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        self._ledger.lingers = False
        self._wake()

    def _hurry(self) -> None:
        """Write what is there. All records of one turn of the loop go to the thread together."""
        if not self._ledger.woken and self._loop is not None:
            self._ledger.woken = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._ledger.woken = False
        if self._writer is not None:
            self._writer.wake()

    def _tell(self, progress: WriteProgress) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ledger.hear, progress)


def _ending() -> EngineUnavailable:
    return EngineUnavailable(
        "the server is shutting down, and goes on with the session when it runs again: ask again "
        "then",
        retry_after_s=1.0,
    )


def earlier_of(one: Keyed, session: str) -> Earlier:
    """What is stored of a key, whose submit went to this session."""
    return Earlier(session, tuple(one.tasks.split()), one.digest)


class WriteLedger:
    """How many items were put, how many are on disk, and which requests wait for which."""

    def __init__(self) -> None:
        self.put = 0
        self.woken = False  # the writer will write in the next turn of the loop
        self.lingers = False  # or LINGER_S after the first record that no request waits for
        self.error = ""
        self._done = 0
        self._lost: frozenset[int] = frozenset()
        self._full = False
        self._fenced = False
        self._waiting: list[_Waiting] = []

    def admit(self) -> None:
        if self._fenced:
            raise SessionMoved()
        if self.error or self._full:
            raise self._failed()

    def has(self, mark: int) -> bool:
        """Whether `mark` items are on disk."""
        return mark <= self._done

    async def reached(self, mark: int, session: int) -> None:
        """Return when `mark` items are on disk. Raises StorageFull, at once where the disk cannot
        be written now.
        """
        if self.error and session not in self._lost and not (self.has(mark) or self._fenced):
            raise self._failed()
        try:
            async with asyncio.timeout(ACK_S):
                await self.written(mark, session, is_patient=False)
        except TimeoutError:
            raise StorageFull(
                "the disk of the server does not answer: try again later", retry_after_s=5.0
            ) from None

    async def written(self, mark: int, session: int, *, is_patient: bool = True) -> None:
        """Return when `mark` items are on disk, however long that takes. Raises StorageFull where
        the session was given up.
        """
        if session in self._lost:
            raise _given_up()
        if self.has(mark):
            return
        if self._fenced:
            raise SessionMoved()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(mark, session, future, is_patient))
        await future

    def end(self, error: EngineUnavailable) -> None:
        """Nothing more is written: what waits gets this error."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.future.done():
                one.future.set_exception(error)

    def hear(self, progress: WriteProgress) -> None:
        if progress.error and not self.error:
            log.error("sessions cannot be stored: %s", progress.error)
        elif self.error and not progress.error:
            log.warning("sessions are stored again")
        self._done, self.error = progress.done, progress.error
        self._lost, self._full = progress.lost, progress.full
        self._fenced = progress.fenced
        still = []
        for one in self._waiting:
            if one.future.done():
                continue
            if one.session in self._lost:
                one.future.set_exception(_given_up())
            elif one.mark <= self._done:
                one.future.set_result(None)
            elif self._fenced:
                one.future.set_exception(SessionMoved())
            elif self.error and not one.is_patient:
                one.future.set_exception(self._failed())
            else:
                still.append(one)
        self._waiting = still

    def _failed(self) -> StorageFull:
        return StorageFull(
            "the server cannot write its store of sessions, so it accepts nothing new: try again "
            "later",
            retry_after_s=2.0,
        )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What waits until `mark` items are on disk, for a session; also while nothing is written, if
    it is patient.
    """

    mark: int
    session: int
    future: asyncio.Future[None]
    is_patient: bool


def _given_up() -> StorageFull:
    return StorageFull("the session could not be kept while the disk was full: open another")
