"""Keeps an error of our own in the session where it happened: this session ends, and the others go
on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType

from weftline_server.session.session import Session

log = logging.getLogger("weftline.driver")
REASON = "the server made an error in this session and closed it: its log says which"


class _Inside:
    """The context manager of `inside`. This is a class, because a block is entered for each token
    and a generator would cost more."""

    __slots__ = ("_close", "_session")

    def __init__(self, session: Session, close: Callable[[Session, str], None]) -> None:
        self._session, self._close = session, close

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("session %s ends: an error in the server", self._session.id, exc_info=error)
        asyncio.get_running_loop().call_soon(self._close, self._session, REASON)
        return True


class Containment:
    """Runs code that must not raise. `close` ends a session."""

    def __init__(self, close: Callable[[Session, str], None]) -> None:
        self._close = close
        self._tasks: set[asyncio.Task[None]] = set()

    def inside(self, session: Session) -> _Inside:
        """Return a context manager: an exception in its block is logged, and `session` ends soon.

        Otherwise one call's error would end the task that listens to an engine, and with it every
        session that waits for this engine.
        """
        return _Inside(session, self._close)

    def spawn(self, session: Session, work: Coroutine[object, object, None]) -> None:
        """Start `work` for `session` as a task of its own."""

        async def contained() -> None:
            with self.inside(session):
                await work

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step never awaits the work. Python would
            # warn of work that was never awaited, in whatever test or request runs when the work is
            # collected.
            work.close()

        task = asyncio.create_task(contained())
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def settle(self) -> None:
        """Wait for all tasks started so far, and for those that they start."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
