"""What a journal needs of a database that holds sessions, and which database a setting names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from weftline_server.journal.cipher import Cipher
from weftline_server.journal.store import Change, JournalStore, JournalStoreConfig, Keyed, Stored

SCHEMES = ("postgresql://", "postgres://")


class SessionStore(Protocol):
    """Sessions and their records. `failures` are what its methods raise where the database
    fails.
    """

    failures: tuple[type[Exception], ...]

    @property
    def is_synced_later(self) -> bool:
        """Whether a commit may not have reached the disk, so that `sync` has to be called."""

    def close(self) -> None: ...

    def wall_time(self) -> float:
        """The time of day that is in the records."""

    def meta(self, name: str, default: str) -> str:
        """A value of the store itself, set to `default` if it is new."""

    def next_run(self) -> int:
        """A number for a run of a server that no other run has."""

    def last_number(self) -> int:
        """The number after which this program counts the sessions that it opens."""

    def write(self, changes: Sequence[Change]) -> None:
        """Make all changes, or none."""

    def sync(self) -> None: ...

    def sessions(self, *, closed: bool) -> list[Stored]:
        """The open sessions, or the closed ones with the last closed first."""

    def records(self, session: int) -> Iterator[bytes]:
        """The records of a session, in order. Raises InvalidRequest where the key does not fit."""

    def keys(self, since: float) -> Iterator[tuple[Keyed, str]]:
        """The idempotency keys made since then, each with the id of its session."""

    def expire(self, now: float, keys_s: float) -> bool:
        """Delete what is too old, or too much. Return whether the store is within its bounds."""


def is_shared(path: str) -> bool:
    """Whether several servers may use the store that this setting names."""
    return path.startswith(SCHEMES)


def opened_store(config: JournalStoreConfig, cipher: Cipher | None) -> SessionStore:
    """The store that the settings name. Raises InvalidRequest where it cannot be used."""
    if not is_shared(config.path):
        return JournalStore(config, cipher)
    from weftline_server.journal.postgres import PostgresStore  # an extra has its driver

    return PostgresStore(config, cipher)
