"""The file of sessions: its bounds, its versions, its key, and what it refuses."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.null.journal.places import Files, Stores
from weftline.errors import InvalidRequest
from weftline_server.cli import main
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.replay import Opened
from weftline_server.journal.store import (
    MIGRATIONS,
    Append,
    Close,
    Drop,
    Keyed,
    Open,
)


def session(number: int, tenant: str = "t") -> Open:
    return Open(number, Opened(tenant, f"s{number}", "", float(number), True))


def test_a_write_is_whole_or_not_at_all(stores: Stores) -> None:
    """A write that fails in the middle leaves none of its rows."""
    with stores.opened("f") as store:
        store.write([session(1), Append(1, b"{}")])
        with pytest.raises(store.failures):
            store.write([Append(1, b"[]"), session(2), session(2)])
        assert list(store.records(1)) == [b"{}"]
        assert [one.number for one in store.sessions(closed=False)] == [1]


def test_closed_sessions_are_deleted(stores: Stores) -> None:
    """Three closed sessions of 100 kB and one open one. The first is too old. Of the others one is
    too much.
    """
    with stores.opened("f", keep_s=50.0, max_bytes=280_000) as store:
        for number in (1, 2, 3, 4):
            store.write([session(number), Append(number, b"x" * 100_000)])
        store.write([Close(number, 100.0 * number) for number in (1, 2, 3)])
        assert store.expire(now=151.0, keys_s=600.0)
        assert [one.number for one in store.sessions(closed=True)] == [3]
        assert [one.number for one in store.sessions(closed=False)] == [4]
        assert list(store.records(1)) == []


def test_only_open_sessions_fill_the_file(stores: Stores) -> None:
    """Nothing may be deleted: the file is not within its bounds until one of them closes."""
    with stores.opened("f", max_bytes=100_000) as store:
        store.write([session(1), Append(1, b"x" * 200_000)])
        assert not store.expire(now=1.0, keys_s=600.0)
        store.write([Close(1, 1.0)])
        assert store.expire(now=1.0, keys_s=600.0)


def test_deleted_space_is_given_back(tmp_path: Path) -> None:
    """After a session is deleted, the file gets smaller."""
    with Files(tmp_path).opened("f") as store:
        store.write([session(1), *(Append(1, b"x" * 100_000) for _ in range(20))])
        store.sync()
        large = (tmp_path / "f").stat().st_size
        store.write([Drop(1)])
        store.expire(now=1.0, keys_s=600.0)
        store.sync()
        assert large > 2_000_000 and (tmp_path / "f").stat().st_size < 100_000


def test_keys_expire(stores: Stores) -> None:
    """An idempotency key is found within its age, and deleted after it."""
    with stores.opened("f") as store:
        store.write([session(1), Keyed(1, "t", "k", b"d", "c1 c2", made=100.0)])
        assert list(store.keys(since=50.0)) == [(Keyed(1, "t", "k", b"d", "c1 c2", 100.0), "s1")]
        assert list(store.keys(since=101.0)) == []
        store.expire(now=701.0, keys_s=600.0)
        assert list(store.keys(since=0.0)) == []


# What each released version has written; a version is added here when it is released.
FILES = {
    0: [],
    1: [
        MIGRATIONS[0],
        "INSERT INTO sessions VALUES (7, 't', 's7', '', 1.0, 1, NULL)",
        "INSERT INTO records VALUES (1, 7, X'7b7d')",
        "PRAGMA user_version = 1",
    ],
}


@pytest.mark.parametrize("version", FILES)
def test_a_file_of_each_version_is_read(tmp_path: Path, version: int) -> None:
    """It has the newest schema afterwards, and its sessions."""
    assert version <= len(MIGRATIONS)
    with closing(sqlite3.connect(tmp_path / "f")) as db:
        for sql in FILES[version]:
            db.executescript(sql)
    with Files(tmp_path).opened("f") as store:
        assert [one.number for one in store.sessions(closed=False)] == ([7] if version else [])
        assert list(store.records(7)) == ([b"{}"] if version else [])
    with closing(sqlite3.connect(tmp_path / "f")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """An older server does not touch a file that it may misread."""
    with closing(sqlite3.connect(tmp_path / "f")) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(InvalidRequest, match="later version"), Files(tmp_path).opened("f"):
        pass


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    """A file that is not SQLite's, and a missing folder."""
    (tmp_path / "f").write_text("some other file, not of SQLite at all" * 100)
    with pytest.raises(InvalidRequest, match="not a database"), Files(tmp_path).opened("f"):
        pass
    with pytest.raises(InvalidRequest, match="No such file"), Files(tmp_path / "none").opened("f"):
        pass


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    """The file holds what tenants said, so only the server's user has access."""
    with Files(tmp_path).opened("f"):
        assert (tmp_path / "f").stat().st_mode & 0o077 == 0


def test_a_key_file_encrypts_what_is_stored(tmp_path: Path) -> None:
    """No byte of a text is in the file. Another key, and a record of another session, do not open.
    A store that was begun without a key goes on with one.
    """
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("ab" * 32)
    other.write_text("cd" * 32)
    with Files(tmp_path).opened("f") as store:
        store.write([session(1), session(2), Append(1, b'{"v":1}')])
    with Files(tmp_path).opened("f", Cipher.of(str(key))) as store:
        store.write([Append(1, b'{"text":"a secret"}')])
        assert list(store.records(1)) == [b'{"v":1}', b'{"text":"a secret"}']
    for file in tmp_path.glob("f*"):
        assert b"a secret" not in file.read_bytes()
    with (
        Files(tmp_path).opened("f", Cipher.of(str(other))) as store,
        pytest.raises(InvalidRequest, match="another key"),
    ):
        list(store.records(1))
    with closing(sqlite3.connect(tmp_path / "f")) as db:
        db.execute("UPDATE records SET session = 2")
        db.commit()
    with (
        Files(tmp_path).opened("f", Cipher.of(str(key))) as store,
        pytest.raises(InvalidRequest, match="damaged"),
    ):
        list(store.records(2))


@pytest.mark.parametrize("text", ["", "ab", "no hex at all", "ab" * 33])
def test_a_bad_key_file(tmp_path: Path, text: str) -> None:
    """A key that is empty, short, long, no hexadecimal number or not there is refused at the
    start."""
    (tmp_path / "key").write_text(text)
    with pytest.raises(InvalidRequest, match="key"):
        Cipher.of(str(tmp_path / "key"))
    with pytest.raises(InvalidRequest, match="No such file"):
        Cipher.of(str(tmp_path / "none"))


def main_of(*argv: str) -> int:
    return main(list(argv))


def test_sessions_move_from_one_store_to_another(
    stores: Stores, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export and import give the same sessions; those that are there already are left alone."""
    with stores.opened("f") as store:
        store.write([session(1), Append(1, b'{"v":1}'), Append(1, b'{"v":2}')])
        store.write([session(2, "other"), Append(2, b'{"v":3}'), Close(2, 9.0)])
    assert main_of("sessions", "export", "--store", stores.address("f")) == 0
    lines = capsys.readouterr().out
    for added in ("2 sessions added, 0 were", "0 sessions added, 2 were"):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert main_of("sessions", "import", "--store", stores.address("g")) == 0
        assert added in capsys.readouterr().out
    with stores.opened("g") as store:
        (first,), (second,) = store.sessions(closed=False), store.sessions(closed=True)
        assert (first.opened, second.opened) == (session(1).opened, session(2, "other").opened)
        assert second.closed == 9.0
        assert list(store.records(first.number)) == [b'{"v":1}', b'{"v":2}']
    monkeypatch.setattr("sys.stdin", io.StringIO("[]"))
    assert main_of("sessions", "import", "--store", stores.address("g")) == 1
    assert "line 1 holds no session" in capsys.readouterr().err
    assert main_of("sessions", "export", "--store", stores.address("none")) == 1


def test_doctor_checks_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sound store passes. A damaged file and a missing one fail."""
    path = tmp_path / "f"
    with Files(tmp_path).opened("f") as store:
        store.write([session(1), *(Append(1, b"x" * 1000) for _ in range(100))])
    assert main_of("doctor", "--store", str(path)) == 0
    assert "sound: 1 sessions, 0 of them closed" in capsys.readouterr().out
    data = bytearray(path.read_bytes())
    data[8192:16384] = bytes(8192)
    path.write_bytes(data)
    assert main_of("doctor", "--store", str(path)) == 1
    assert main_of("doctor", "--store", str(tmp_path / "none")) == 1
