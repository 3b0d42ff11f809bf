"""A client's stream that is dropped before its end never blocks the thread that drops it."""

from __future__ import annotations

import gc
from collections.abc import Generator
from threading import Event, Lock

from weftline.sdk.text_stream import TextStream


class Connection:
    """A connection whose pool has a lock, like a connection of httpcore."""

    def __init__(self) -> None:
        self.pool = Lock()
        self.closed = Event()

    def read(self) -> Generator[str, None, None]:
        try:
            yield "one"
            yield "two"
        finally:
            with self.pool:
                self.closed.set()


def test_a_dropped_stream_is_closed_outside_the_collector() -> None:
    """The garbage collector finds the stream while its own thread holds the pool's lock."""
    connection = Connection()
    stream = TextStream(connection.read())
    assert next(stream) == "one"
    cycle: list[object] = [stream]
    cycle.append(cycle)
    del stream, cycle
    with connection.pool:
        gc.collect()
        assert not connection.closed.is_set()
    assert connection.closed.wait(10)


def test_a_stream_closes_at_once() -> None:
    """The stream is closed by `close`, by its end, and by an error inside."""
    closed, ended, failed = Connection(), Connection(), Connection()
    stream = TextStream(closed.read())
    assert next(stream) == "one"
    stream.close()
    assert closed.closed.is_set() and list(stream) == []
    assert list(TextStream(ended.read())) == ["one", "two"]
    assert ended.closed.is_set()
    stream = TextStream(failed.read())
    next(stream)
    try:
        stream.throw(ValueError("no"))
    except ValueError as error:
        assert str(error) == "no"
    assert failed.closed.is_set()
