"""The store in PostgreSQL: what the tests of files hold, and what only a database can do."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cluster.database import Databases
from tests.null.journal.places import Files
from tests.null.journal.test_store import main_of, session
from tests.null.journal.test_store import (
    test_a_write_is_whole_or_not_at_all as test_a_write_is_whole_or_not_at_all,
)
from tests.null.journal.test_store import (
    test_closed_sessions_are_deleted as test_closed_sessions_are_deleted,
)
from tests.null.journal.test_store import test_keys_expire as test_keys_expire
from tests.null.journal.test_store import (
    test_only_open_sessions_fill_the_file as test_only_open_sessions_fill_the_file,
)
from tests.null.journal.test_store import (
    test_sessions_move_from_one_store_to_another as test_sessions_move_from_one_store_to_another,
)
from weftline.errors import InvalidRequest
from weftline_server.cluster.shared_journal import SharedJournal
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.fence import Fenced
from weftline_server.journal.postgres import PostgresStore
from weftline_server.journal.postgres_schema import MIGRATIONS
from weftline_server.journal.store import Append, Change, Close, JournalStoreConfig
from weftline_server.runtime.registry import Registry, RegistryConfig


def joined(stores: Databases, *numbers: int) -> None:
    """Servers with a lease of a minute."""
    for number in numbers:
        stores.run(
            "INSERT INTO weftline.servers (number, address, host, version, models, keys, since, "
            f"expires) VALUES ({number}, '', '', '', '', '', now(), now() + interval '1 minute')"
        )


def test_sessions_move_from_a_file_and_back(
    stores: Databases,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a file exports, a database takes, and exports the same lines again."""
    files = Files(tmp_path)
    with files.opened("a") as store:
        store.write([session(1), Append(1, b'{"v":1}'), Append(1, b'{"v":2}')])
        store.write([session(2, "other"), Append(2, b'{"v":3}'), Close(2, 9.0)])
    lines = ""
    for source, target in ((files.address("a"), stores.address()), (stores.address(), "")):
        assert main_of("sessions", "export", "--store", source) == 0
        said, lines = capsys.readouterr().out, lines
        assert not lines or said == lines
        lines = said
        if target:
            monkeypatch.setattr("sys.stdin", io.StringIO(said))
            assert main_of("sessions", "import", "--store", target) == 0
            assert "2 sessions added, 0 were" in capsys.readouterr().out


def test_a_group_is_one_round_trip(stores: Databases, tmp_path: Path) -> None:
    """Two hundred changes of four kinds, the renewal, the begin and the commit: the store asks the
    server to answer once.
    """
    with stores.opened("f") as store, (tmp_path / "trace").open("w+") as trace:
        joined(stores, 1)
        store.own(1, 5.0)
        changes: list[Change] = []
        for number in range(1, 51):
            changes += [session(number), Append(number, b"a"), Append(number, b"b")]
            changes.append(Close(number, 1.0))
        store._db.pgconn.trace(trace.fileno())
        store.write(changes)
        store._db.pgconn.untrace()
        trace.seek(0)
        assert trace.read().count("\tSync") == 1
        assert len(store.sessions(closed=True)) == 50
        assert list(store.records(7)) == [b"a", b"b"]


def test_a_fenced_server_writes_nothing(stores: Databases) -> None:
    """Server 2 fences server 1 between two writes of server 1: the second is refused whole."""
    with stores.opened("f") as store:
        joined(stores, 1)
        store.own(1, 5.0)
        store.write([session(1), Append(1, b"1")])
        stores.run("UPDATE weftline.servers SET fenced = true WHERE number = 1")
        with pytest.raises(Fenced, match="server 1 is fenced"):
            store.write([session(2), Append(1, b"2")])
        assert [one.number for one in store.sessions(closed=False)] == [1]
        assert list(store.records(1)) == [b"1"]


def test_a_session_of_another_owner_takes_no_record(stores: Databases) -> None:
    """Server 1 holds its lease, but one of two sessions was given to server 2."""
    with stores.opened("f") as store:
        joined(stores, 1, 2)
        store.own(1, 5.0)
        store.write([session(1), session(2)])
        stores.run("UPDATE weftline.sessions SET owner = 2 WHERE number = 2")
        with pytest.raises(Fenced, match="not all of these sessions"):
            store.write([Append(1, b"1"), Append(2, b"2")])
        assert list(store.records(1)) == []
        store.write([Append(1, b"1")])
        assert list(store.records(1)) == [b"1"]


def test_a_fence_waits_for_a_write_that_has_begun(stores: Databases) -> None:
    """The renewal of a write holds the server's row: who would fence it waits for the commit, and
    then finds a lease that has not expired.
    """
    with stores.opened("f"):
        joined(stores, 1)
        stores.run("UPDATE weftline.servers SET expires = now() - interval '1 s'")
        with psycopg.connect(stores.address()) as writer:
            writer.execute("SELECT weftline.renew(1, 5.0, 1)")
            fence = "UPDATE weftline.servers SET fenced = true WHERE number = 1 AND expires < now()"
            with psycopg.connect(stores.address(), autocommit=True) as other:
                other.execute("SET lock_timeout = '50ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(fence.encode())
                writer.commit()
                assert other.execute(fence.encode()).rowcount == 0


class Cut:
    """Breaks the connection of a store in the middle of the next commit, before or after it."""

    def __init__(self, store: PostgresStore, stores: Databases, *, after: bool) -> None:
        self._db: Any = store._db
        self._stores = stores
        self._after = after
        self._execute = self._db.execute
        self._db.execute = self.execute

    def execute(self, statement: Any, values: Sequence[Any] | None = None) -> Any:
        if statement != "COMMIT":
            return self._execute(statement, values)
        if self._after:
            self._execute(statement)
            self._db._pipeline.sync()
        pid = self._db.info.backend_pid
        self._stores.run(f"SELECT pg_terminate_backend({pid}, 5000)", "other")
        return self._execute("SELECT 1")


@pytest.mark.parametrize("after", [False, True])
def test_a_connection_that_breaks_at_a_commit(stores: Databases, after: bool) -> None:
    """The group is written again only if it was not committed; what came since is written in both
    cases. Each record is there once.
    """
    with stores.opened("f") as store:
        joined(stores, 1)
        store.own(1, 5.0)
        first: list[Change] = [session(1), Append(1, b"1")]
        Cut(store, stores, after=after)
        with pytest.raises(psycopg.OperationalError):
            store.write(first)
        assert len(stores.run("SELECT 1 FROM weftline.records")) == after
        store.write([*first, Append(1, b"2")])
        store.write([Append(1, b"3")])
        assert list(store.records(1)) == [b"1", b"2", b"3"]


def test_a_database_of_a_later_version_is_refused(stores: Databases) -> None:
    """An older server does not touch what it may misread, nor what it has no rights to."""
    with stores.opened("f"):
        pass
    with stores.opened("f"):
        pass  # the schema is made once
    stores.run(f"UPDATE weftline.meta SET value = '{len(MIGRATIONS) + 1}' WHERE name = 'schema'")
    with pytest.raises(InvalidRequest, match="later version"):
        PostgresStore(JournalStoreConfig(path=stores.address()))


def test_a_database_that_cannot_be_used(stores: Databases) -> None:
    """No such database, no right to make the tables or to write them, a schema of another program
    with the same name, and no server at all.
    """
    with pytest.raises(InvalidRequest, match="does not exist"):
        PostgresStore(JournalStoreConfig(path=stores.address("none")))
    stores.run("DROP ROLE IF EXISTS nobody")
    stores.run("CREATE ROLE nobody LOGIN")
    address = stores.address().replace("postgres:@", "nobody:@")
    with pytest.raises(InvalidRequest, match="permission denied"):
        PostgresStore(JournalStoreConfig(path=address))
    with stores.opened("f"):
        stores.run("GRANT USAGE ON SCHEMA weftline TO nobody")
        stores.run("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA weftline TO nobody")
        stores.run("GRANT USAGE ON ALL SEQUENCES IN SCHEMA weftline TO nobody")
        with pytest.raises(InvalidRequest, match="may not write the tables"):
            PostgresStore(JournalStoreConfig(path=address))
        stores.run("GRANT DELETE ON ALL TABLES IN SCHEMA weftline TO nobody")
        PostgresStore(JournalStoreConfig(path=address)).close()
    stores.address("other")
    stores.run("CREATE SCHEMA weftline", "other")
    stores.run("CREATE TABLE weftline.servers (name text)", "other")
    with pytest.raises(InvalidRequest, match='relation "servers" already exists'):
        PostgresStore(JournalStoreConfig(path=stores.address("other")))
    with pytest.raises(InvalidRequest, match="cannot use the database"):
        PostgresStore(JournalStoreConfig(path="postgresql://u:secret@127.0.0.1:1/x"))


def test_a_key_file_encrypts_what_is_stored(stores: Databases, tmp_path: Path) -> None:
    """No byte of a text is in the tables. A server with another key, or without one, is refused."""
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "other").write_text("cd" * 32)
    with stores.opened("f", Cipher.of(str(tmp_path / "key"))) as store:
        store.write([session(1), Append(1, b'{"text":"a secret"}')])
    [(body,)] = stores.run("SELECT body FROM weftline.records")
    assert b"a secret" not in body
    with stores.opened("f", Cipher.of(str(tmp_path / "key"))) as store:
        assert list(store.records(1)) == [b'{"text":"a secret"}']
    config = JournalStoreConfig(path=stores.address())
    with pytest.raises(InvalidRequest, match="another key"):
        PostgresStore(config, Cipher.of(str(tmp_path / "other")))
    with pytest.raises(InvalidRequest, match="give its key file"):
        PostgresStore(config)


def test_programs_count_apart(stores: Databases) -> None:
    """Two programs that open sessions at the same time give them different numbers."""
    with stores.opened("f") as one, stores.opened("f") as other:
        first, second = one.last_number(), other.last_number()
        assert second - first == 1 << 32


async def test_servers_of_a_store_make_the_same_salts(stores: Databases) -> None:
    """So a tenant's calls share caches, whichever server sends them. Another store, or none, makes
    others.
    """
    config = RegistryConfig()
    addresses = (stores.address(), stores.address(), stores.address("other"))
    journals = [SharedJournal(JournalStoreConfig(path=one), time.monotonic) for one in addresses]
    one, same, other = (Registry(config, journal=journal).salts for journal in journals)
    assert one["a"] == same["a"]
    assert len({one["a"], one["b"], other["a"], Registry(config).salts["a"]}) == 4
    for journal in journals:
        await journal.close()
