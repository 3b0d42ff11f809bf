"""Sessions in PostgreSQL, for one server or for several: the same rows as in the SQLite file.

One thread of a server writes. A group of changes is one transaction and one round trip. Where the
connection breaks while a group is committed, the server's row says whether the group is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.deadline import Deadline
from weftline_server.journal.fence import Fenced
from weftline_server.journal.postgres_schema import FENCED, MIGRATIONS, NOT_OURS, SCHEMA
from weftline_server.journal.store import (
    EXPIRED_AT_ONCE,
    Append,
    Change,
    Close,
    Drop,
    JournalStoreConfig,
    Keyed,
    Open,
    Stored,
    in_order,
    keyed_row,
    opened_row,
)

try:
    import psycopg
except ImportError as error:
    raise InvalidRequest(
        "a store in PostgreSQL needs its driver: pip install 'weftline[postgres]'", param="store"
    ) from error

CONNECT_S = 3  # to connect
ANSWER_S = 6.0  # for a group of statements; a database that is stopped never answers
STATEMENT_MS = 5000  # a statement that takes longer fails, for example one that waits for a lock
SESSION_BITS = 32  # of a session's number; those above are the run's that opened the session
_LOCK = 8_600_039  # the advisory lock under which the schema is made, any number

# What each connection of a server sets. A database that is cut off is noticed as a slow statement
# is.
SETTINGS: Mapping[str, str | int] = MappingProxyType(
    {
        "application_name": "weftline",
        "connect_timeout": CONNECT_S,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": STATEMENT_MS,
    }
)

_OPEN = """
INSERT INTO weftline.sessions (number, tenant, id, alias, opened, stays, owner)
SELECT one.*, %s FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::float8[],
  %s::boolean[]) AS one
"""
_KEYED = """
INSERT INTO weftline.keys (tenant, key, digest, session, tasks, made, server)
SELECT one.*, %s FROM unnest(%s::text[], %s::text[], %s::bytea[], %s::bigint[], %s::text[],
  %s::float8[]) AS one
ON CONFLICT (tenant, key) DO UPDATE SET digest = excluded.digest, session = excluded.session,
  tasks = excluded.tasks, made = excluded.made, server = excluded.server
"""
_CLOSE = """
UPDATE weftline.sessions SET closed = one.at
FROM unnest(%s::bigint[], %s::float8[]) AS one (number, at) WHERE sessions.number = one.number
"""
_DROP = (
    "DELETE FROM weftline.records WHERE session = ANY(%s)",
    "DELETE FROM weftline.keys WHERE session = ANY(%s)",
    "DELETE FROM weftline.sessions WHERE number = ANY(%s)",
)
_RIGHTS = """
SELECT has_sequence_privilege('weftline.runs', 'USAGE')
  AND bool_and(has_table_privilege(t.oid, one))
FROM pg_class AS t, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS one
WHERE t.relnamespace = 'weftline'::regnamespace AND t.relkind = 'r'
"""
_SESSIONS = "SELECT number, tenant, id, alias, opened, stays, closed FROM weftline.sessions WHERE "


def conninfo(path: str) -> str:
    """The address of the database, with these settings."""
    return str(psycopg.conninfo.make_conninfo(path, **SETTINGS))


def connected(config: JournalStoreConfig) -> psycopg.Connection[Any]:
    """A connection on which every statement is a transaction. Raises psycopg.Error."""
    # A statement that a failed pipeline has not prepared would be taken for a prepared one.
    db = psycopg.connect(conninfo(config.path), autocommit=True, prepare_threshold=None)
    db.execute(
        "SELECT set_config('synchronous_commit', %s, false), "
        "set_config('statement_timeout', %s, false)",
        ("on" if config.durability == "full" else "off", str(STATEMENT_MS)),
    )
    return db


class PostgresStore:
    """A database. Raises InvalidRequest if it cannot be used, or was made by a later version."""

    failures: tuple[type[Exception], ...] = (psycopg.Error, OSError)
    is_synced_later = False

    def __init__(self, config: JournalStoreConfig, cipher: Cipher | None = None) -> None:
        self._config = config
        self._cipher = cipher
        self._server = 0  # that owns what is written; 0 is none
        self._lease_s = 0.0
        self._groups = 0
        self._unsure: tuple[Change, ...] = ()  # a group whose commit was not answered
        self._deadline = Deadline(ANSWER_S)
        try:
            self._db = connected(config)
        except psycopg.Error as error:
            raise _unusable(error) from error
        try:
            _migrate(self._db)
            self._check_rights()
            self._check_key()
        except psycopg.Error as error:
            self._db.close()
            raise _unusable(error) from error
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._deadline.close()
        self._db.close()

    def own(self, server: int, lease_s: float) -> None:
        """Write as this server from now on, which renews its lease with each group."""
        self._server, self._lease_s = server, lease_s
        self._groups, self._unsure = 0, ()

    def wall_time(self) -> float:
        """The database's time of day: those of several servers may differ."""
        return float(self._one("SELECT extract(epoch FROM clock_timestamp())"))

    def meta(self, name: str, default: str) -> str:
        """A value of the store itself, set to `default` if it is new."""
        self._db.execute(
            "INSERT INTO weftline.meta VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, default)
        )
        return str(self._one("SELECT value FROM weftline.meta WHERE name = %s", (name,)))

    def next_run(self) -> int:
        """The number of a run of a server. No other run of any server has it."""
        return int(self._one("SELECT nextval('weftline.runs')"))

    def last_number(self) -> int:
        """A number after which 2^32 are this program's alone."""
        return self.next_run() << SESSION_BITS

    def write(self, changes: Sequence[Change]) -> None:
        """Make all changes, or none. Raises psycopg.Error, and Fenced where another server has
        taken over.
        """
        if self._db.closed:
            self._db = connected(self._config)
        with self._deadline.of(self._db):
            self._write(changes)

    def _write(self, changes: Sequence[Change]) -> None:
        changes = self._left(changes)
        try:
            with self._db.pipeline():
                self._db.execute("BEGIN")
                if self._server:
                    self._renew()
                for kind, run in groupby(in_order(changes), type):
                    self._change(kind, list(run))
                self._unsure = tuple(changes)
                self._db.execute("COMMIT")
        except psycopg.Error as error:
            if self._db.broken:
                self._db.close()
            else:
                self._unsure = ()  # the server has answered
                self._db.execute("ROLLBACK")
            if error.sqlstate in (FENCED, NOT_OURS):
                raise Fenced(_said(error)) from error
            raise
        self._unsure = ()

    def _left(self, changes: Sequence[Change]) -> Sequence[Change]:
        """What is not written yet, where the connection broke while the last group was committed.
        The next group begins with the changes of the last.
        """
        unsure = self._unsure
        if not unsure or not self._server:
            return changes
        sql = "SELECT written FROM weftline.servers WHERE number = %s"
        if int(self._one(sql, (self._server,))) != self._groups:
            return changes
        is_repeated = len(changes) >= len(unsure) and all(
            one is other for one, other in zip(changes, unsure, strict=False)
        )
        return changes[len(unsure) :] if is_repeated else changes

    def _renew(self) -> None:
        self._groups += 1
        self._db.execute(
            "SELECT weftline.renew(%s, %s, %s)", (self._server, self._lease_s, self._groups)
        )

    def _change(self, kind: type[Change], some: Sequence[Any]) -> None:
        """Make changes of one kind in one statement, its rows as arrays."""
        match kind:
            case _ if kind is Open:
                rows = list(map(opened_row, some))
                self._db.execute(_OPEN, (self._server, *_columns(rows)))
            case _ if kind is Keyed:
                last = {(one.tenant, one.key): one for one in some}  # a row may change once
                keyed = list(map(keyed_row, last.values()))
                self._db.execute(_KEYED, (self._server, *_columns(keyed)))
            case _ if kind is Append:
                numbers = [one.session for one in some]
                bodies = [self._sealed(one) for one in some]
                self._db.execute(
                    "SELECT weftline.append(%s, %s::bigint[], %b::bytea[])",
                    (self._server, numbers, bodies),
                )
            case _ if kind is Close:
                self._db.execute(_CLOSE, _columns([(one.session, one.at) for one in some]))
            case _:
                assert kind is Drop, kind
                self._delete([one.session for one in some])

    def _sealed(self, one: Append) -> bytes:
        return one.body if self._cipher is None else self._cipher.seal(one.session, one.body)

    def sync(self) -> None:
        """A commit is on the disk, or will be within a second: PostgreSQL sees to it."""

    def sessions(self, *, closed: bool) -> list[Stored]:
        """The open sessions, or the closed ones with the last closed first."""
        which = "closed IS NOT NULL ORDER BY closed DESC" if closed else "closed IS NULL"
        return list(map(Stored.of, self._db.execute(_SESSIONS + which)))

    def records(self, session: int) -> Iterator[bytes]:
        """The records of a session, in order. Raises InvalidRequest where the key does not fit."""
        sql = "SELECT body FROM weftline.records WHERE session = %s ORDER BY number"
        for (body,) in self._db.execute(sql, (session,), binary=True):
            yield body if self._cipher is None else self._cipher.open(session, body)

    def keys(self, since: float) -> Iterator[tuple[Keyed, str]]:
        """The idempotency keys made since then, each with the id of its session."""
        sql = (
            "SELECT session, keys.tenant, key, digest, tasks, made, id FROM weftline.keys "
            "JOIN weftline.sessions ON number = session WHERE made >= %s"
        )
        for *row, id in self._db.execute(sql, (since,)):
            yield Keyed(*row), id

    def expire(self, now: float, keys_s: float) -> bool:
        """Delete what is too old, or too much. Return whether the store is within its bounds."""
        if self._db.closed:
            self._db = connected(self._config)
        with self._deadline.of(self._db):
            self._db.execute("DELETE FROM weftline.keys WHERE made < %s", (now - keys_s,))
            self._db.execute(
                "DELETE FROM weftline.servers AS old WHERE fenced AND number > 0 AND NOT EXISTS "
                "(SELECT FROM weftline.sessions WHERE owner = old.number AND closed IS NULL)"
            )
        oldest = now - self._config.keep_s
        while self._expire_some(lambda closed: closed < oldest):
            pass
        while self._expire_some(lambda closed: self._size() > self._config.max_bytes):
            pass
        with self._deadline.of(self._db):
            return self._size() <= self._config.max_bytes

    def _expire_some(self, is_due: Callable[[float], bool]) -> bool:
        """Delete some closed sessions that are due, the oldest first. Return whether any were."""
        sql = (
            "SELECT number, closed FROM weftline.sessions WHERE closed IS NOT NULL "
            "ORDER BY closed LIMIT %s"
        )
        deleted = False
        with self._deadline.of(self._db):
            found = self._db.execute(sql, (EXPIRED_AT_ONCE,)).fetchall()
        for number, closed in found:
            with self._deadline.of(self._db):
                if not is_due(closed):
                    break
                with self._db.transaction():
                    self._delete([number])
            deleted = True
        return deleted

    def _delete(self, sessions: Sequence[int]) -> None:
        for sql in _DROP:
            self._db.execute(sql, (list(sessions),))

    def _size(self) -> int:
        """The bytes of all records, as they are stored."""
        return int(self._one("SELECT coalesce(sum(bytes), 0) FROM weftline.sessions"))

    def _check_rights(self) -> None:
        """Raise InvalidRequest where the user may not write the tables, made by another one."""
        if not self._one(_RIGHTS):
            raise InvalidRequest(
                "the user of the database may not write the tables of the schema weftline: use "
                "their owner, or GRANT ALL ON ALL TABLES and SEQUENCES IN SCHEMA weftline to it",
                param="store",
            )

    def _check_key(self) -> None:
        """Raise InvalidRequest where the records are sealed with another key, or with any."""
        if self._cipher is not None:
            seal = self.meta("seal", self._cipher.seal(0, b"weftline").hex())
            self._cipher.open(0, bytes.fromhex(seal))
        elif self._db.execute("SELECT 1 FROM weftline.meta WHERE name = 'seal'").fetchone():
            raise InvalidRequest(
                "the store is encrypted: give its key file", param="store_key_file"
            )

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        row = self._db.execute(sql.encode(), values).fetchone()
        assert row is not None, sql
        return row[0]


def _columns(rows: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))


def _unusable(error: psycopg.Error) -> InvalidRequest:
    said = f"cannot use the database of the store: {_said(error)}"
    return InvalidRequest(said, param="store")


def _said(error: psycopg.Error) -> str:
    """The first line of what PostgreSQL says. It has no password in it."""
    return str(error).strip().partition("\n")[0]


def _migrate(db: psycopg.Connection[Any]) -> None:
    """Make the schema, or bring that of an earlier version up to this one."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        found = db.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.meta",)).fetchone()
        version = 0
        if found is not None and found[0] is not None:
            row = db.execute("SELECT value FROM weftline.meta WHERE name = 'schema'").fetchone()
            version = 0 if row is None else int(row[0])
        if version > len(MIGRATIONS):
            raise InvalidRequest(
                "the store was written by a later version of weftline: use that version",
                param="store",
            )
        if version == len(MIGRATIONS):
            return
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
        db.execute(f"SET LOCAL search_path TO {SCHEMA}".encode())
        for script in MIGRATIONS[version:]:
            db.execute(script.encode())
        db.execute(
            "INSERT INTO weftline.meta VALUES ('schema', %s) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (str(len(MIGRATIONS)),),
        )
