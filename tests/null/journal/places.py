"""Where the tests of stores keep sessions: files here, databases in tests/cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from weftline_server.journal.cipher import Cipher
from weftline_server.journal.store import JournalStore, JournalStoreConfig


class Stores(Protocol):
    """Empty stores by name, for one test."""

    def address(self, name: str) -> str:
        """What --store says."""

    def opened(self, name: str, cipher: Cipher | None = None, **more: Any) -> Any:
        """A context manager of the store."""


class Files:
    """Stores as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: str) -> str:
        return str(self._folder / name)

    @contextmanager
    def opened(
        self, name: str, cipher: Cipher | None = None, **more: Any
    ) -> Iterator[JournalStore]:
        store = JournalStore(JournalStoreConfig(path=self.address(name), **more), cipher)
        try:
            yield store
        finally:
            store.close()
