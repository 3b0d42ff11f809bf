"""Ends a connection to PostgreSQL whose answer is late: the driver itself waits without a limit."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

LOOK_S = 0.5  # between two looks at the connection of a writer


def cut(db: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Shut the connection down under who waits for an answer on it: it is broken then.

    A cancelled query would ask the same server to stop it, and wait for that.
    """
    with (
        suppress(psycopg.Error, OSError),  # it is closed already
        socket.socket(fileno=os.dup(db.fileno())) as one,
    ):
        one.shutdown(socket.SHUT_RDWR)


class Deadline:
    """Watches the connection of one thread, from a thread of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked: tuple[psycopg.Connection[Any], float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, db: psycopg.Connection[Any]) -> Iterator[None]:
        """Cut the connection if the block takes too long."""
        if self._thread is None:
            name = "weftline-deadline"
            self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
            self._thread.start()
        self._asked = db, time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._asked = None

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            asked = self._asked
            if asked is not None and time.monotonic() > asked[1]:
                cut(asked[0])
