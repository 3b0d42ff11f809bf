"""The journal of a server that shares its store: it records the sessions that this server owns."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable

from weftline_server.journal.journal import Journal, Key, RecordTrack, WriteLedger, earlier_of
from weftline_server.journal.postgres import SESSION_BITS, PostgresStore
from weftline_server.journal.records import Clock
from weftline_server.journal.replay import replay
from weftline_server.journal.store import Keyed, Stored
from weftline_server.journal.writer import WriteProgress
from weftline_server.session.session import ServerSession

Make = Callable[[str, str, float, bool], ServerSession]


class SharedJournal(Journal):
    """Records the sessions of one server among several. The server's number is that of its lease.

    A server whose lease was taken over loses all its sessions, and may record others under a new
    number.
    """

    is_shared = True

    @property
    def secret(self) -> str:
        """What the servers of this store know, and nobody else."""
        return self._store.meta("secret", secrets.token_hex(32))

    def _salt_key(self) -> bytes:
        """The same for all servers of the store: the calls of a tenant share caches, whichever
        server sends them.
        """
        return hmac.digest(self.secret.encode(), b"salts", "sha256")

    def own(self, server: int, lease_s: float) -> None:
        """Write under this number, before `start`."""
        assert isinstance(self._store, PostgresStore)
        self._store.own(server, lease_s)
        self.run = server
        self._number = server << SESSION_BITS

    def adopted(
        self, one: Stored, records: Iterable[bytes], keys: Iterable[Keyed], make: Make
    ) -> ServerSession:
        """A session that this server owns from now on, as it was. Raises Unreadable."""
        session = self.viewed(one, records, make)
        self._tracks[session] = RecordTrack(one.number)
        if one.opened.alias:
            self.aliases[one.opened.tenant, one.opened.alias] = one.opened.id
        self.remember(one, keys)
        return session

    def viewed(self, one: Stored, records: Iterable[bytes], make: Make) -> ServerSession:
        """A stored session, to look at. Raises Unreadable."""
        clock = Clock(self.clock.offset, self._now())
        return replay(one.opened, map(self._opened_record(one.number), records), clock, make)

    def remember(self, one: Stored, keys: Iterable[Keyed]) -> None:
        """Answer the requests with these keys, which added tasks to the session, from now on."""
        for key in keys:
            self._earlier[key.tenant, key.key] = earlier_of(key, one.opened.id)

    def knows(self, key: Key) -> bool:
        """Whether a request with this key is answered with what it did at another server."""
        return (key.tenant, key.key) in self._earlier

    def owns(self, session: ServerSession) -> bool:
        """Whether the session is recorded here."""
        track = self._tracks.get(session)
        return track is not None and not track.gone

    def let_go(self, session: ServerSession) -> int:
        """Record nothing more of a session, which another server will go on with. Return its
        number.
        """
        track = self._tracks[session]
        if track.opening is not None:
            self._put(track)
        track.gone = True
        return track.number

    def lose(self) -> None:
        """Another server has taken over: what is here is not written any more, nor given."""
        for track in self._tracks.values():
            track.gone = True
        self.aliases.clear()
        self._earlier.clear()
        self._ledger.hear(WriteProgress(0, fenced=True))

    async def recover(self, server: int, lease_s: float) -> None:
        """Record under a new number, after `lose`."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.abandon)
        self._ledger = WriteLedger()
        self.own(server, lease_s)
        self.start()

    def _opened_record(self, number: int) -> Callable[[bytes], bytes]:
        cipher = self._cipher
        return bytes if cipher is None else lambda body: cipher.open(number, body)
