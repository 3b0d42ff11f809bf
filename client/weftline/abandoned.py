"""Streams that may be dropped before their end, at any moment and on any thread."""

from __future__ import annotations

import os
from collections.abc import Generator
from queue import SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any


class _Closer:
    """A thread that closes what was dropped. It starts when the first stream does."""

    def __init__(self) -> None:
        self._lock = Lock()
        # A finaliser may call its put at any moment, even inside another put.
        self._dropped: SimpleQueue[Generator[str, None, None]] = SimpleQueue()
        self._started = False

    def start(self) -> None:
        with self._lock:
            if not self._started:
                Thread(target=self._run, name="weftline-closer", daemon=True).start()
                self._started = True

    def close(self, source: Generator[str, None, None]) -> None:
        self._dropped.put(source)

    def _run(self) -> None:
        while True:
            self._dropped.get().close()


class TextStream(Generator[str, None, None]):
    """A generator that does not close its connection inside the garbage collector.

    The collector runs wherever memory is allocated, and so inside the lock of the connection pool.
    A generator that it closes there waits for that lock, which its own thread holds, for ever.
    Another thread closes the generator instead; an explicit `close` does so at once.
    """

    def __init__(self, source: Generator[str, None, None]) -> None:
        self._source = source
        _OPEN[id(self)] = source  # else the collector would take it together with this object
        _CLOSER.start()

    def send(self, value: None) -> str:
        """The next text."""
        try:
            return self._source.send(value)
        except BaseException:
            _OPEN.pop(id(self), None)
            raise

    def throw(
        self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None
    ) -> str:
        """Raise an exception where the stream waits."""
        thrown: Any = typ if val is None else val
        try:
            return self._source.throw(thrown)
        except BaseException:
            _OPEN.pop(id(self), None)
            raise

    def close(self) -> None:
        """Close the connection. The server cancels the calls that no other reader waits for."""
        _OPEN.pop(id(self), None)
        self._source.close()

    def __del__(self) -> None:
        source = _OPEN.pop(id(self), None)
        if source is not None:
            _CLOSER.close(source)


_OPEN: dict[int, Generator[str, None, None]] = {}
_CLOSER = _Closer()


def _forget() -> None:
    """In a forked process: it has no closer, and its streams belong to the parent."""
    global _CLOSER
    _CLOSER = _Closer()


os.register_at_fork(after_in_child=_forget)
