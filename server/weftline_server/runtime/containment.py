"""Keeps an error of our own in the session where it happened: this session ends, and the others go
on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from weftline_server.session.session import ServerSession

log = logging.getLogger("weftline.driver")
REASON = "the server made an error in this session and closed it: its log says which"

P = ParamSpec("P")


class Containment:
    """Runs code that must not raise. `close` ends a session."""

    def __init__(self, close: Callable[[ServerSession, str], None]) -> None:
        self._close = close
        self._tasks: set[asyncio.Task[None]] = set()

    def run(
        self, session: ServerSession, work: Callable[P, None], *args: P.args, **kw: P.kwargs
    ) -> None:
        """Do `work`: an exception in it is logged, and `session` ends soon.

        Otherwise one call's error would end the task that listens to an engine, and with it every
        session that waits for this engine. This is no context manager, because it runs for each
        token, and an object and three more calls cost as much as some of the work.
        """
        try:
            work(*args, **kw)
        except Exception as error:
            self._failed(session, error)

    def spawn(self, session: ServerSession, work: Coroutine[object, object, None]) -> None:
        """Start `work` for `session` as a task of its own."""

        async def contained() -> None:
            try:
                await work
            except Exception as error:
                self._failed(session, error)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step never awaits the work. Python would
            # warn of work that was never awaited, in whatever test or request runs when the work is
            # collected.
            work.close()

        task = asyncio.create_task(contained())
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _failed(self, session: ServerSession, error: Exception) -> None:
        log.error("session %s ends: an error in the server", session.id, exc_info=error)
        asyncio.get_running_loop().call_soon(self._close, session, REASON)

    async def settle(self) -> None:
        """Wait for all tasks started so far, and for those that they start."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
