"""One event loop in a thread of its own, which sends the requests of synchronous programs.

The synchronous client and the adapters use it. A framework may call a model from any thread and any
event loop. Work on this loop and its connections outlive the caller's loop. A caller waits for a
future, so that no caller can block the result of another one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass, field
from threading import Lock, Thread, current_thread
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Close: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Background:
    """The event loop. It is made when it is first needed, in each process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop, with the caller's context variables.

        Cancelling the future cancels the work.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: a program ends although a request of it is still open.
                self._thread = Thread(
                    target=_run, args=(self._loop,), name="weftline-background", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result of `work`. If the wait is interrupted, the work is cancelled.

        Raises RuntimeError where the wait would never end: on the loop itself, and when Python has
        already stopped the loop's thread at the end of the program.
        """
        if (wrong := self._refusal()) is not None:
            work.close()
            raise RuntimeError(wrong)
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def dispose(self, close: Close) -> None:
        """Start `close` if the loop runs. It takes no lock: the garbage collector may call it."""
        if self._loop is not None and not sys.is_finalizing():
            asyncio.run_coroutine_threadsafe(close(), self._loop)

    def _refusal(self) -> str | None:
        if current_thread() is self._thread:
            return "the event loop of weftline cannot wait for itself: use AsyncClient here"
        if sys.is_finalizing():
            return "the program has ended: close its sessions and clients before its last line"
        return None

    def forget(self) -> None:
        """Start afresh after a fork: the child process has a copy of the loop, but no thread."""
        self._lock, self._loop, self._thread = Lock(), None, None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop. A task that raises SystemExit or KeyboardInterrupt ends only itself: its caller
    gets the exception.

    asyncio would let the exception end the loop. Then nothing would answer any caller of this
    process again.
    """
    while not loop.is_closed():
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
            return


async def awaited(future: Future[T], timeout_s: float | None = None) -> T:
    """The result of a shared `future`, which goes on if this wait is cancelled. Raises TimeoutError
    after `timeout_s` seconds."""
    inner = asyncio.wrap_future(future)
    # If this wait is cancelled, nobody reads a later error, and asyncio would log it.
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    reader = asyncio.shield(inner)
    if timeout_s is None:
        return await reader
    # asyncio.timeout would keep the caller's context variables alive until the time is over,
    # because a loop removes a cancelled timer only when it is the next one due.
    timer = inner.get_loop().call_later(timeout_s, _expire, reader, context=Context())
    try:
        return await reader
    finally:
        timer.cancel()


def _expire(reader: asyncio.Future[Any]) -> None:
    if not reader.done():
        reader.set_exception(TimeoutError())


@dataclass(slots=True)
class _Link(Generic[T]):
    """An item of a chain, and the next link once it exists. None ends the chain."""

    item: T
    next: Future[_Link[T] | None] = field(default_factory=Future)


class Chain(Generic[T]):
    """A list of items that grows. Each reader gets all items, on any thread or event loop."""

    def __init__(self) -> None:
        self._first: Future[_Link[T] | None] = Future()
        self._last = self._first

    def add(self, item: T) -> None:
        """Append one item."""
        link = _Link(item)
        self._last.set_result(link)
        self._last = link.next

    def end(self, error: BaseException | None = None) -> None:
        """End the chain. A reader that reaches the end raises `error`, if there is one."""
        if self._last.done():
            return
        if error is None:
            self._last.set_result(None)
        else:
            self._last.set_exception(error)

    def read(self, timeout_s: float | None = None) -> Generator[T, None, None]:
        """The items as they arrive. Raises the error that ended the chain.

        Raises TimeoutError when the next item takes longer than `timeout_s` seconds.
        """
        link = self._first.result(timeout_s)
        while link is not None:
            yield link.item
            link = link.next.result(timeout_s)

    async def aread(self, timeout_s: float | None = None) -> AsyncGenerator[T, None]:
        """Like `read`, for a coroutine."""
        link = await awaited(self._first, timeout_s)
        while link is not None:
            yield link.item
            link = await awaited(link.next, timeout_s)


class Relay(Generic[T]):
    """Runs an async generator on the background loop, for a reader on another thread or loop.

    A reader that stops before the end also stops the generator.
    """

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._chain: Chain[T] = Chain()
        self._work = BACKGROUND.start(self._run(source))

    async def _run(self, source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    self._chain.add(item)
        except BaseException as error:
            self._chain.end(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._chain.end()

    def __iter__(self) -> Generator[T, None, None]:
        try:
            yield from self._chain.read()
        finally:
            self._work.cancel()

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        try:
            async for item in self._chain.aread():
                yield item
        finally:
            self._work.cancel()


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.forget)
