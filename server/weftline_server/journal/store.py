"""The SQLite file that holds sessions: rows by (tenant, id), and their records in order.

One program uses a file at a time, and one thread of it. Every change is a transaction, so after a
kill or a power cut each session has all of its records up to some point, and none after it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.kept_objects import SCHEMA
from weftline_server.journal.replay import Opened

# One script for each version of the schema; the file's `user_version` counts those that have run.
# A released script is never changed: a new version is a new script.
MIGRATIONS = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE sessions (
      number INTEGER PRIMARY KEY,
      tenant TEXT NOT NULL,
      id TEXT NOT NULL,
      alias TEXT NOT NULL,
      opened REAL NOT NULL,
      stays INTEGER NOT NULL,
      closed REAL,
      UNIQUE (tenant, id)
    );
    CREATE INDEX sessions_closed ON sessions (closed) WHERE closed IS NOT NULL;
    CREATE TABLE records (number INTEGER PRIMARY KEY, session INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE INDEX records_session ON records (session);
    CREATE TABLE keys (
      tenant TEXT NOT NULL,
      key TEXT NOT NULL,
      digest BLOB NOT NULL,
      session INTEGER NOT NULL,
      tasks TEXT NOT NULL,
      made REAL NOT NULL,
      PRIMARY KEY (tenant, key)
    ) WITHOUT ROWID;
    """,
    SCHEMA,
)
BUSY_MS = 2000  # how long a write waits for another program that has locked the file
EXPIRED_AT_ONCE = 200  # sessions that one transaction deletes
VACUUMED_PAGES = 2000  # that one sweep gives back to the file system


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStoreConfig:
    """The file of the sessions, the postgresql:// address of a database, or "" for none; and what
    a power cut may cost.

    With `durability` "full" every commit reaches the disk before it is acknowledged, so a power cut
    costs nothing that was acknowledged. With "batch" the file is synced once a second, and a power
    cut may cost the last second; a kill of the server costs nothing. Closed sessions are deleted
    `keep_s` seconds after their end, the oldest first and earlier where the file is larger than
    `max_bytes`. `key_file` holds 32 bytes, as hex digits, that encrypt what is stored.
    """

    path: str = ""
    durability: str = "full"
    keep_s: float = 86_400.0
    max_bytes: int = 8 << 30
    key_file: str = ""

    def __post_init__(self) -> None:
        if self.durability not in ("full", "batch"):
            raise InvalidRequest(
                f"durability {self.durability!r} is neither full nor batch", param="durability"
            )


@dataclass(frozen=True, slots=True)
class Open:
    """A new session."""

    session: int
    opened: Opened


@dataclass(frozen=True, slots=True)
class Append:
    """A record of a session."""

    session: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """The session has ended, at this time of the wall clock."""

    session: int
    at: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a session and its records."""

    session: int


@dataclass(frozen=True, slots=True)
class Keyed:
    """An idempotency key, the digest of its request, and the tasks that the request added."""

    session: int
    tenant: str
    key: str
    digest: bytes
    tasks: str
    made: float


Change = Open | Append | Close | Drop | Keyed

Row = tuple[object, ...]


def opened_row(one: Open) -> Row:
    opened = one.opened
    return (one.session, opened.tenant, opened.id, opened.alias, opened.at, opened.stays)


def keyed_row(one: Keyed) -> Row:
    return (one.tenant, one.key, one.digest, one.session, one.tasks, one.made)


# How many changes of a kind are written by one statement, in the order of their kinds.
_STATEMENTS: Mapping[type[Change], tuple[str, Callable[[Any], Row]]] = MappingProxyType(
    {
        Open: (
            "INSERT INTO sessions (number, tenant, id, alias, opened, stays) VALUES {rows}",
            opened_row,
        ),
        Keyed: (
            "INSERT OR REPLACE INTO keys (tenant, key, digest, session, tasks, made) VALUES {rows}",
            keyed_row,
        ),
        Append: (
            "INSERT INTO records (session, body) VALUES {rows}",
            lambda one: (one.session, one.body),
        ),
        Close: (
            "UPDATE sessions SET closed = column2 FROM (VALUES {rows}) WHERE number = column1",
            lambda one: (one.session, one.at),
        ),
    }
)
_RANKS: Mapping[type[Change], int] = {kind: rank for rank, kind in enumerate(_STATEMENTS)}
MOST_ROWS = 64  # of a statement


def in_order(changes: Sequence[Change]) -> Sequence[Change]:
    """A session is opened before anything else, and closed last."""
    if any(type(one) is Drop for one in changes):
        return changes
    return sorted(changes, key=lambda one: _RANKS[type(one)])


@dataclass(frozen=True, slots=True)
class Stored:
    """A session in the file."""

    number: int
    opened: Opened
    closed: float | None

    @staticmethod
    def of(row: Sequence[Any]) -> Stored:
        number, tenant, id, alias, at, stays, ended = row
        return Stored(number, Opened(tenant, id, alias, at, bool(stays)), ended)


class JournalStore:
    """An open file. Raises InvalidRequest if it is in use, or was written by a later version."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def __init__(self, config: JournalStoreConfig, cipher: Cipher | None = None) -> None:
        self.path = Path(config.path)
        self._config = config
        self._cipher = cipher
        self._lock = _locked(self.path)
        try:
            self._db = _connected(self.path, config.durability)
            _migrate(self._db, self.path)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise InvalidRequest(f"cannot use {self.path}: {error}", param="store") from error
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def is_synced_later(self) -> bool:
        """Whether a commit may not have reached the disk."""
        return self._config.durability == "batch"

    def close(self) -> None:
        """Write everything into the file itself, and let other programs have it."""
        self._db.close()
        os.close(self._lock)

    def wall_time(self) -> float:
        return time.time()

    def meta(self, name: str, default: str) -> str:
        """A value of the store itself, set to `default` if it is new."""
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, default))
        (value,) = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(value)

    def next_run(self) -> int:
        """The number of this run of the server: one more than that of the last."""
        number = int(self.meta("runs", "0")) + 1
        with self._db:
            self._db.execute("UPDATE meta SET value = ? WHERE name = 'runs'", (str(number),))
        return number

    def last_number(self) -> int:
        (found,) = self._db.execute("SELECT max(number) FROM sessions").fetchone()
        return int(found or 0)

    def write(self, changes: Sequence[Change]) -> None:
        """Make all changes, or none. Raises sqlite3.Error."""
        with self._db:
            for kind, run in groupby(in_order(changes), type):
                some = list(run)
                for at in range(0, len(some), MOST_ROWS):
                    self._change(kind, some[at : at + MOST_ROWS])

    def _change(self, kind: type[Change], some: Sequence[Any]) -> None:
        """Make changes of one kind in one statement. After each statement the thread waits for the
        event loop to give the interpreter back: half of the time, with a statement for each change.
        """
        if kind is Drop:
            self._delete([one.session for one in some])
            return
        sql, row = _STATEMENTS[kind]
        rows = list(map(row, map(self._sealed, some)))
        one = f"({', '.join('?' * len(rows[0]))})"
        self._db.execute(
            sql.format(rows=", ".join([one] * len(rows))), list(chain.from_iterable(rows))
        )

    def _sealed(self, change: Change) -> Change:
        if self._cipher is None or not isinstance(change, Append):
            return change
        return Append(change.session, self._cipher.seal(change.session, change.body))

    def sync(self) -> None:
        """Bring the commits so far to the disk, as "batch" does once a second."""
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def sessions(self, *, closed: bool) -> list[Stored]:
        """The open sessions, or the closed ones with the last closed first."""
        which = "closed IS NOT NULL ORDER BY closed DESC" if closed else "closed IS NULL"
        found = self._db.execute(
            f"SELECT number, tenant, id, alias, opened, stays, closed FROM sessions WHERE {which}"
        )
        return list(map(Stored.of, found))

    def records(self, session: int) -> Iterator[bytes]:
        """The records of a session, in order. Raises InvalidRequest where the key does not fit."""
        sql = "SELECT body FROM records WHERE session = ? ORDER BY number"
        for (body,) in self._db.execute(sql, (session,)):
            yield bytes(body) if self._cipher is None else self._cipher.open(session, body)

    def keys(self, since: float) -> Iterator[tuple[Keyed, str]]:
        """The idempotency keys made since then, each with the id of its session."""
        sql = (
            "SELECT session, keys.tenant, key, digest, tasks, made, id FROM keys "
            "JOIN sessions ON number = session WHERE made >= ?"
        )
        for *row, id in self._db.execute(sql, (since,)):
            yield Keyed(*row), id

    def expire(self, now: float, keys_s: float) -> bool:
        """Delete what is too old, or too much. Return whether the file is within its bounds."""
        with self._db:
            self._db.execute("DELETE FROM keys WHERE made < ?", (now - keys_s,))
        oldest = now - self._config.keep_s
        while self._expire_some(lambda closed: closed < oldest):
            pass
        while self._expire_some(lambda closed: self._size() > self._config.max_bytes):
            pass
        # A script, because `execute` would give back one page only.
        self._db.executescript(f"PRAGMA incremental_vacuum({VACUUMED_PAGES})")
        return self._size() <= self._config.max_bytes

    def _expire_some(self, is_due: Callable[[float], bool]) -> bool:
        """Delete some closed sessions that are due, the oldest first. Return whether any were."""
        sql = "SELECT number, closed FROM sessions WHERE closed IS NOT NULL ORDER BY closed LIMIT ?"
        found = self._db.execute(sql, (EXPIRED_AT_ONCE,)).fetchall()
        deleted = False
        with self._db:
            for number, closed in found:
                if not is_due(closed):
                    break
                self._delete([number])
                deleted = True
        return deleted

    def _delete(self, sessions: Iterable[int]) -> None:
        rows = [(session,) for session in sessions]
        for sql in (
            "DELETE FROM records WHERE session = ?",
            "DELETE FROM keys WHERE session = ?",
            "DELETE FROM sessions WHERE number = ?",
        ):
            self._db.executemany(sql, rows)

    def _size(self) -> int:
        numbers = [
            self._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        ]
        return int((numbers[0] - numbers[1]) * numbers[2])


def _locked(path: Path) -> int:
    """A lock that only this program has, until it ends. Raises InvalidRequest."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidRequest(f"cannot use {path}: {error.strerror}", param="store") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise InvalidRequest(
            f"another program uses {path}: stop it, or name another file", param="store"
        ) from error
    return lock


def _connected(path: Path, durability: str) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # ours alone
    db = sqlite3.connect(path, timeout=BUSY_MS / 1000, check_same_thread=False)
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
    db.execute("PRAGMA temp_store = MEMORY")
    return db


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise InvalidRequest(
            f"{path} was written by a later version of weftline: use that version", param="store"
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        db.executescript(f"BEGIN; {script}; PRAGMA user_version = {number}; COMMIT")
