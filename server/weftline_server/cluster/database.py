"""What the servers of a store ask the database, on the event loop: leases, orphans, places, keys.

A lost answer does no harm: each statement may be sent again. Commits here do not wait for the
disk. The next commit of a writer brings them there, and what a crash of the database forgets is
refused or found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from weftline.contract.errors import InvalidRequest
from weftline_server.cluster.card import Card, Peer, refusal, replaced
from weftline_server.cluster.route import KeyPlace, SessionPlace
from weftline_server.cluster.takeover import Orphan
from weftline_server.journal.deadline import cut
from weftline_server.journal.fence import Fenced
from weftline_server.journal.kept_objects import Steps, StepsEnded, after, unusable
from weftline_server.journal.postgres import STATEMENT_MS, conninfo
from weftline_server.journal.postgres_schema import FENCED
from weftline_server.journal.store import JournalStoreConfig, Keyed, Stored
from weftline_server.runtime.tenant_tally import TenantTally

T = TypeVar("T")

FAILURES = (psycopg.Error, PoolTimeout)  # what the methods raise where the database fails
CONNECTIONS = 4  # of a server at most, besides the writer's
WAIT_S = 2.0  # for a connection
ASK_S = 3.0  # for the answer to a question, by this machine's clock
JOIN_S = 10.0  # to join, for which servers wait for one another
MOST_ORPHANS = 512  # that are looked at together
_CARD = "address, host, version, models, keys"
_STORED = "s.number, s.tenant, s.id, s.alias, s.opened, s.stays, s.closed"
_LEFT = "extract(epoch FROM expires - clock_timestamp())::float8"

_JOIN = f"""
INSERT INTO weftline.servers (number, {_CARD}, since, expires)
VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp(),
  clock_timestamp() + make_interval(secs => %s))
"""
_DROP_TALLIES = """
DELETE FROM weftline.tallies AS t USING weftline.servers AS v WHERE v.number = t.server AND v.fenced
"""
_VIEW = f"""
SELECT number, {_CARD}, {_LEFT}, extract(epoch FROM clock_timestamp() - since)::float8,
  EXISTS (SELECT FROM weftline.servers AS v JOIN weftline.sessions ON owner = v.number
    WHERE v.fenced AND closed IS NULL AND deaths < %s), ended
FROM weftline.servers WHERE NOT fenced
"""
# What this server's tenants have now, where that has changed, and what those of the others have.
_TALLY = """
WITH mine AS (
  INSERT INTO weftline.tallies (server, tenant, sessions, queued, bytes, served)
  SELECT %s, one.* FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
    AS one
  ON CONFLICT (server, tenant) DO UPDATE SET sessions = excluded.sessions,
    queued = excluded.queued, bytes = excluded.bytes, served = excluded.served
)
SELECT tenant, sum(t.sessions)::bigint, sum(t.queued)::bigint, sum(t.bytes)::bigint,
  sum(t.served)::bigint
FROM weftline.tallies AS t JOIN weftline.servers AS v ON v.number = t.server
WHERE t.server <> %s AND NOT v.fenced GROUP BY tenant
"""
_FENCE = """
UPDATE weftline.servers SET fenced = true
WHERE number = ANY(%s) AND NOT fenced AND expires < clock_timestamp()
"""
_ORPHANS = """
SELECT s.number, s.deaths + (s.trial IS NOT NULL AND NOT v.ended)::int
FROM weftline.servers AS v JOIN weftline.sessions AS s ON s.owner = v.number
WHERE v.fenced AND s.closed IS NULL AND s.deaths < %s ORDER BY s.number LIMIT %s
"""
# A server that waits for the row of another finds another owner there, and takes nothing.
_CLAIM = f"""
UPDATE weftline.sessions AS s SET owner = %s, epoch = epoch + 1, trial = %s,
  deaths = deaths + (trial IS NOT NULL AND NOT v.ended)::int
FROM weftline.servers AS v
WHERE s.number = ANY(%s) AND s.owner = v.number AND v.fenced AND s.closed IS NULL
RETURNING {_STORED}, s.deaths
"""
_ACQUIT = """
UPDATE weftline.sessions SET trial = NULL, deaths = 0
WHERE number = ANY(%s) AND owner = %s AND trial = %s
"""
_RELEASE = """
WITH released AS (
  UPDATE weftline.sessions SET owner = 0 WHERE number = ANY(%s) AND owner = %s RETURNING number
) UPDATE weftline.keys SET server = 0 FROM released WHERE session = released.number
"""
_RECORDS = "SELECT body FROM weftline.records WHERE session = %s ORDER BY number"
_KEYS = "SELECT session, tenant, key, digest, tasks, made FROM weftline.keys WHERE session = %s"
_PLACE = f"""
SELECT {_STORED}, s.deaths, s.owner, v.address, coalesce(v.fenced, true)
FROM weftline.sessions AS s LEFT JOIN weftline.servers AS v ON v.number = s.owner
WHERE s.tenant = %s AND s.{{name}} = %s ORDER BY s.closed DESC NULLS FIRST LIMIT 1
"""
_TAKE_KEY = """
INSERT INTO weftline.keys (tenant, key, digest, session, tasks, made, server)
VALUES (%s, %s, %s, NULL, '', extract(epoch FROM clock_timestamp()), %s)
ON CONFLICT (tenant, key) DO UPDATE SET server = excluded.server
WHERE keys.digest = excluded.digest AND keys.session IS NULL AND EXISTS
  (SELECT FROM weftline.servers AS v WHERE v.number = keys.server AND v.fenced)
RETURNING 1
"""
_KEY = """
SELECT k.digest, s.id, k.server, v.address, coalesce(v.fenced, true)
FROM weftline.keys AS k LEFT JOIN weftline.servers AS v ON v.number = k.server
LEFT JOIN weftline.sessions AS s ON s.number = k.session
WHERE k.tenant = %s AND k.key = %s
"""


# The pool has a line for each attempt to connect. What it means is said once, by the member.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The servers that hold a lease, or held one until now. `steady_s` is for how long this one
    has. `has_orphans` says that there are sessions to adopt.
    """

    peers: tuple[Peer, ...]
    steady_s: float
    has_orphans: bool


class Pooled:
    """Statements through a pool of connections."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool

    async def _rows(
        self, sql: str, values: Sequence[Any], *, binary: bool = False
    ) -> list[tuple[Any, ...]]:
        async with self._connection() as db:
            return await (await db.execute(sql.encode(), values, binary=binary)).fetchall()

    @asynccontextmanager
    async def _connection(
        self, within_s: float = ASK_S
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        loop, is_late = asyncio.get_running_loop(), False

        def end(db: psycopg.AsyncConnection[Any]) -> None:
            nonlocal is_late
            is_late = True
            cut(db)

        try:
            async with self._pool.connection() as db:
                late = loop.call_later(within_s, end, db)
                try:
                    yield db
                finally:
                    late.cancel()
        except psycopg.OperationalError:
            if not is_late:  # a database that does not answer would not answer this either
                await self._pool.check()  # the other connections are probably broken, too
            raise


class SessionTable(Pooled):
    """Where sessions are, who adopts them, and what is stored of them."""

    async def orphans(self, deaths: int) -> list[Orphan]:
        """Open sessions whose owners are fenced, of fewer deaths than these."""
        return [Orphan(*row) for row in await self._rows(_ORPHANS, (deaths, MOST_ORPHANS))]

    async def claim(self, me: int, sessions: Sequence[int]) -> list[tuple[Stored, int]]:
        """Own those of the sessions that are still orphans, and have them on trial. Return them
        with their deaths.
        """
        rows = await self._rows(_CLAIM, (me, me, list(sessions)))
        return [(Stored.of(row[:-1]), row[-1]) for row in rows]

    async def acquit(self, me: int, sessions: Sequence[int]) -> None:
        """The server has lived through the trial of these sessions."""
        async with self._connection() as db:
            await db.execute(_ACQUIT, (list(sessions), me, me))

    async def release(self, me: int, sessions: Sequence[int]) -> None:
        """Own these sessions no more, after the last write to them: they are orphans."""
        async with self._connection() as db:
            await db.execute(_RELEASE, (list(sessions), me))

    async def contents(self, session: int) -> tuple[list[bytes], list[Keyed]]:
        """The records of a session, in order, and the keys of the requests that added its tasks."""
        records = await self._rows(_RECORDS, (session,), binary=True)
        keys = await self._rows(_KEYS, (session,))
        return [body for (body,) in records], [Keyed(*row) for row in keys]

    async def place(self, tenant: str, id: str, *, is_alias: bool) -> SessionPlace | None:
        """Where the tenant's session is, by our id or by the one that a client chose."""
        sql = _PLACE.format(name="alias" if is_alias else "id")
        rows = await self._rows(sql, (tenant, id))
        return _place(rows[0]) if rows else None

    async def take_key(self, me: int, tenant: str, key: str, digest: bytes) -> KeyPlace | None:
        """Claim a key for this server: None where it is this server's now, else who has it.

        The key of a fenced server that stored nothing for it may be claimed, too.
        """
        while True:
            if await self._rows(_TAKE_KEY, (tenant, key, digest, me)):
                return None
            if rows := await self._rows(_KEY, (tenant, key)):
                return KeyPlace(*rows[0])


class ObjectTable(Pooled):
    """Performs what is done to the objects of clients. With `is_synced` it is on the disk then."""

    def __init__(self, pool: AsyncConnectionPool, *, is_synced: bool) -> None:
        super().__init__(pool)
        self._commits = f"SET LOCAL synchronous_commit TO {'on' if is_synced else 'off'}"

    async def perform(self, steps: Steps[T], *, whole: bool) -> T:
        """The steps are one transaction in any case."""
        try:
            async with self._connection() as db, db.transaction():
                if whole:
                    await db.execute(self._commits.encode())
                rows = None
                while True:
                    ask = after(steps, rows)
                    if isinstance(ask, StepsEnded):
                        return ask.value
                    sql = ask[0].replace(" objects", " weftline.objects").replace("?", "%s")
                    cursor = await db.execute(sql.encode(), ask[1])
                    rows = [] if cursor.description is None else await cursor.fetchall()
        except FAILURES as error:
            raise unusable(error) from error

    async def close(self) -> None:
        """Nothing: the pool is the member's."""


class ClusterDatabase(Pooled):
    """The leases of servers, and the tables of their sessions and of clients' objects."""

    def __init__(self, config: JournalStoreConfig) -> None:
        settings = f"-c synchronous_commit=off -c statement_timeout={STATEMENT_MS}"
        pool = AsyncConnectionPool(
            conninfo(config.path),
            min_size=1,
            max_size=CONNECTIONS,
            timeout=WAIT_S,
            open=False,
            kwargs={"autocommit": True, "options": settings, "prepare_threshold": None},
            reconnect_timeout=0,  # for ever: each failed attempt of the pool is a new one
        )
        super().__init__(pool)
        self.sessions = SessionTable(pool)
        self.objects = ObjectTable(pool, is_synced=config.durability == "full")

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def join(self, card: Card, number: int | None, lease_s: float) -> int:
        """Give this server a lease and a number, or the one that it has drawn. Raises
        InvalidRequest where it does not fit the others.
        """
        async with self._connection(JOIN_S) as db, db.transaction():
            await db.execute("LOCK TABLE weftline.servers IN SHARE ROW EXCLUSIVE MODE")
            view = _view(await (await db.execute(_VIEW.encode(), (0,))).fetchall(), 0)
            if reason := refusal(card, view.peers):
                raise InvalidRequest(reason, param="store")
            if number is None:
                found = await (await db.execute("SELECT nextval('weftline.runs')")).fetchone()
                assert found is not None
                number = int(found[0])
            fields = (card.address, card.host, card.version, card.models, card.keys)
            await db.execute(_JOIN.encode(), (number, *fields, lease_s))
            sql = "UPDATE weftline.servers SET fenced = true WHERE number = ANY(%s)"
            await db.execute(sql, (replaced(card, view.peers),))
            await db.execute(_DROP_TALLIES)
        return number

    async def renew(self, number: int, lease_s: float, deaths: int) -> ClusterView:
        """Renew the lease, and see the others. Raises Fenced where it was taken over."""
        try:
            async with self._connection() as db:
                await db.execute("SELECT weftline.renew(%s, %s, NULL)", (number, lease_s))
                rows = await (await db.execute(_VIEW.encode(), (deaths,))).fetchall()
        except psycopg.DatabaseError as error:
            if error.sqlstate == FENCED:
                raise Fenced(str(error)) from error
            raise
        return _view(rows, number)

    async def exchange(
        self, number: int, changed: Mapping[str, TenantTally]
    ) -> dict[str, TenantTally]:
        """Tell the other servers what tenants have here, where it has `changed`. Return what each
        tenant has at all others together.
        """
        rows = [
            (tenant, one.sessions, one.queued, one.value_bytes, one.served)
            for tenant, one in changed.items()
        ]
        columns = tuple(list(column) for column in zip(*rows, strict=True)) or ([],) * 5
        found = await self._rows(_TALLY, (number, *columns, number))
        return {tenant: TenantTally(*counts) for tenant, *counts in found}

    async def fence(self, numbers: Sequence[int]) -> int:
        """End the leases of these servers where they have expired. Return how many have ended."""
        async with self._connection() as db:
            return (await db.execute(_FENCE, (list(numbers),))).rowcount

    async def retire(self, number: int) -> None:
        """Tell the other servers that this one adopts nothing more."""
        async with self._connection() as db:
            await db.execute(
                "UPDATE weftline.servers SET ended = true WHERE number = %s", (number,)
            )

    async def leave(self, number: int) -> None:
        """End the own lease, after the last write."""
        async with self._connection() as db:
            sql = "UPDATE weftline.servers SET fenced = true, ended = true WHERE number = %s"
            await db.execute(sql, (number,))


def _view(rows: Sequence[tuple[Any, ...]], me: int) -> ClusterView:
    peers = tuple(Peer(row[0], Card(*row[1:6]), row[6], row[9]) for row in rows)
    steady = next((row[7] for row in rows if row[0] == me), 0.0)
    return ClusterView(peers, steady, bool(rows and rows[0][8]))


def _place(row: Sequence[Any]) -> SessionPlace:
    return SessionPlace(Stored.of(row[:7]), *row[7:])
