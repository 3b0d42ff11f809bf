"""Streams whose reader may drop them before their end, at any moment and on any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import wraps
from queue import SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any, ParamSpec

_P = ParamSpec("_P")


class _Closer:
    """A thread that closes the streams that were dropped. It starts with the first stream."""

    def __init__(self) -> None:
        self._lock = Lock()
        # A finalizer may call `put` inside another `put`, which only SimpleQueue allows.
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

    The garbage collector may run while its thread holds the lock of the connection pool. Closing
    the connection needs that lock, so it would wait forever. Therefore a stream that is dropped is
    closed by another thread. An explicit `close` takes effect at once.
    """

    def __init__(self, source: Generator[str, None, None]) -> None:
        self._source = source
        _OPEN[id(self)] = source  # keeps the source alive when this object is collected
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


def text_stream(
    read: Callable[_P, Generator[str, None, None]],
) -> Callable[_P, Generator[str, None, None]]:
    """Make the generators of `read` streams that may be dropped."""

    @wraps(read)
    def opened(*args: _P.args, **kwargs: _P.kwargs) -> Generator[str, None, None]:
        return TextStream(read(*args, **kwargs))

    return opened


_OPEN: dict[int, Generator[str, None, None]] = {}
_CLOSER = _Closer()


def _forget() -> None:
    """Start afresh in a forked process: it has no closer thread, and no stream is its own."""
    global _CLOSER
    _CLOSER = _Closer()


os.register_at_fork(after_in_child=_forget)
