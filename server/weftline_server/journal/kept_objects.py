"""What clients leave with the server, found by (tenant, id): responses, conversations and thoughts.

What is done to the table is written once, as steps that give statements and take their rows. SQLite
performs them here, in the file of the sessions or in memory, and PostgreSQL in the cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from weftline.contract.errors import StorageFull
from weftline_server.journal.cipher import Cipher

T = TypeVar("T")
Json = dict[str, Any]
Rows = list[tuple[Any, ...]]
Steps = Generator[tuple[str, Sequence[Any]], Rows, T]

IN_MEMORY = ":memory:"
BUSY_S = (
    5.0  # how long a write waits for the journal's thread, which commits every few milliseconds
)
MOST_LINKS = 10_000  # of a chain: as many as a prompt may have messages
EVICTED_AT_ONCE = 100

SCHEMA = """
CREATE TABLE objects (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  previous TEXT NOT NULL,
  body BLOB NOT NULL,
  size INTEGER NOT NULL,
  expires REAL NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX objects_tenant ON objects (tenant, expires, size);
CREATE INDEX objects_expires ON objects (expires);
"""
_FIND = "SELECT body FROM objects WHERE tenant = ? AND id = ? AND expires > ?"
_FIND_ALL = (
    "SELECT id, body, expires FROM objects WHERE tenant = ? AND expires > ? AND id IN ({ids})"
)
# In PostgreSQL this locks the row until the end of the transaction.
_TAKE = "UPDATE objects SET expires = ? WHERE tenant = ? AND id = ? AND expires > ? RETURNING body"
_PUT = (
    "INSERT INTO objects (tenant, id, previous, body, size, expires) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (tenant, id) DO UPDATE SET previous = excluded.previous, body = excluded.body, "
    "size = excluded.size, expires = excluded.expires"
)
_DROP = "DELETE FROM objects WHERE tenant = ? AND id = ?"
_CHAIN = (
    "WITH RECURSIVE chain (id, previous, body, expires, depth) AS ("
    "SELECT id, previous, body, expires, 0 FROM objects WHERE tenant = ? AND id = ? "
    "UNION ALL SELECT o.id, o.previous, o.body, o.expires, depth + 1 FROM chain "
    "JOIN objects AS o ON o.tenant = ? AND o.id = chain.previous WHERE depth < ?) "
    "SELECT id, body, expires FROM chain WHERE expires > ? ORDER BY depth DESC"
)
_RENEW = "UPDATE objects SET expires = ? WHERE tenant = ? AND id = ?"
_EXPIRE = "DELETE FROM objects WHERE expires <= ?"
_TOTAL = "SELECT count(*), CAST(coalesce(sum(size), 0) AS BIGINT) FROM objects WHERE tenant = ?"
_OLDEST = (
    "SELECT id, size FROM objects WHERE tenant = ? AND id <> ? "
    f"ORDER BY expires LIMIT {EVICTED_AT_ONCE}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConfig:
    """For how many seconds a response, a conversation or the thoughts of a turn are kept after
    their last use, how many of them a tenant may have, and of how many bytes. Beyond these the ones
    that were used longest ago go. A response in the background is one of at most `max_background`
    of a tenant, and its events can be read again for `events_s` seconds after its end.
    """

    expiry_s: float = 2_592_000.0
    max_objects: int = 10_000
    max_bytes: int = 128 << 20
    max_background: int = 256
    events_s: float = 300.0


class Performer(Protocol):
    """Performs steps in a database. With `whole` all of them are one transaction."""

    async def perform(self, steps: Steps[T], *, whole: bool) -> T: ...

    async def close(self) -> None: ...


class KeptObjects:
    """The objects of all tenants. A use puts the expiry off. `wall` tells the time of day."""

    def __init__(
        self,
        config: KeptConfig,
        database: Performer,
        wall: Callable[[], float],
        cipher: Cipher | None = None,
    ) -> None:
        self.config = config
        self._database = database
        self._wall = wall
        self._cipher = cipher

    async def close(self) -> None:
        """End the use of the database."""
        await self._database.close()

    async def find(self, tenant: str, id: str) -> Json | None:
        """The object; None if there is none."""
        return await self._database.perform(self._found(tenant, id), whole=False)

    async def find_all(self, tenant: str, ids: Collection[str]) -> dict[str, Json]:
        """The objects that are there, by id. This is a use of them."""
        return await self._database.perform(self._all_found(tenant, ids), whole=False)

    async def chain(self, tenant: str, id: str) -> list[Json]:
        """The object and those before it that are still there, the oldest first."""
        return await self._database.perform(self._chained(tenant, id), whole=False)

    async def change(
        self, tenant: str, id: str, change: Callable[[Json | None], Json | None]
    ) -> Json | None:
        """Make the object what `change` makes of it, and return that. None is no object."""
        return await self._database.perform(self._changed(tenant, id, change), whole=True)

    def _found(self, tenant: str, id: str) -> Steps[Json | None]:
        rows = yield _FIND, (tenant, id, self._wall())
        return self._read(tenant, id, rows[0][0]) if rows else None

    def _all_found(self, tenant: str, ids: Collection[str]) -> Steps[dict[str, Json]]:
        now = self._wall()
        asked = _FIND_ALL.format(ids=", ".join("?" * len(ids)))
        rows = yield asked, (tenant, now, *ids)
        yield from self._renew(tenant, rows, now)
        return {id: self._read(tenant, id, body) for id, body, _ in rows}

    def _chained(self, tenant: str, id: str) -> Steps[list[Json]]:
        now = self._wall()
        rows = yield _CHAIN, (tenant, id, tenant, MOST_LINKS, now)
        found = [self._read(tenant, one, body) for one, body, _ in rows]
        yield from self._renew(tenant, rows, now)
        return found

    def _renew(self, tenant: str, rows: Rows, now: float) -> Steps[None]:
        """Put the expiry of these objects off."""
        for id, _, expires in rows:
            if expires - now < self.config.expiry_s / 2:  # many rows are not written each time
                yield _RENEW, (now + self.config.expiry_s, tenant, id)

    def _changed(
        self, tenant: str, id: str, change: Callable[[Json | None], Json | None]
    ) -> Steps[Json | None]:
        now = self._wall()
        until = now + self.config.expiry_s
        rows = yield _TAKE, (until, tenant, id, now)
        made = change(self._read(tenant, id, rows[0][0]) if rows else None)
        if made is None:
            yield _DROP, (tenant, id)
            return None
        body = json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode(
            errors="surrogatepass"
        )
        if self._cipher is not None:
            body = self._cipher.seal(_number(tenant, id), body)
        yield _PUT, (tenant, id, made.get("previous") or "", body, len(body), until)
        yield from self._make_room(tenant, id, now)
        return made

    def _make_room(self, tenant: str, newest: str, now: float) -> Steps[None]:
        """Delete what has expired, and what a tenant has beyond its bounds."""
        yield _EXPIRE, (now,)
        [(count, size)] = yield _TOTAL, (tenant,)
        while count > self.config.max_objects or size > self.config.max_bytes:
            rows = yield _OLDEST, (tenant, newest)
            for id, bytes_ in rows:
                if count <= self.config.max_objects and size <= self.config.max_bytes:
                    return
                yield _DROP, (tenant, id)
                count, size = count - 1, size - bytes_
            if not rows:
                return

    def _read(self, tenant: str, id: str, body: bytes) -> Json:
        if self._cipher is not None:
            body = self._cipher.open(_number(tenant, id), body)
        found: Json = json.loads(bytes(body).decode(errors="surrogatepass"))
        return found


def _number(tenant: str, id: str) -> int:
    """What a sealed object is bound to."""
    digest = hashlib.blake2b(f"{tenant}\0{id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True, slots=True)
class StepsEnded(Generic[T]):
    """What steps have come to."""

    value: T


def after(steps: Steps[T], rows: Rows | None) -> tuple[str, Sequence[Any]] | StepsEnded[T]:
    """The next statement, given the rows of the last one; None before the first."""
    try:
        return next(steps) if rows is None else steps.send(rows)
    except StopIteration as end:
        return StepsEnded(end.value)


def unusable(error: Exception) -> StorageFull:
    """The error of a request whose object could not be read or written."""
    said = str(error).partition("\n")[0]
    return StorageFull(
        f"the server cannot use its store of responses now ({said[:200]}): try again later",
        retry_after_s=2.0,
    )


class SqliteObjects:
    """The table in a file that a journal has opened, or in memory. One thread uses it."""

    def __init__(self, path: str, durability: str = "full") -> None:
        self._db = sqlite3.connect(
            path, timeout=BUSY_S, check_same_thread=False, isolation_level=None
        )
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        if path == IN_MEMORY:
            self._db.executescript(SCHEMA)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weftline-objects")

    async def perform(self, steps: Steps[T], *, whole: bool) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._perform, steps, whole)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown(wait=False)

    def _perform(self, steps: Steps[T], whole: bool) -> T:
        try:
            if not whole:
                return self._results(steps)
            self._db.execute("BEGIN IMMEDIATE")
            try:
                found = self._results(steps)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            return found
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise unusable(error) from error

    def _results(self, steps: Steps[T]) -> T:
        rows = None
        while True:
            ask = after(steps, rows)
            if isinstance(ask, StepsEnded):
                return ask.value
            rows = self._db.execute(*ask).fetchall()
