"""Heartbeats: they tell a server that this process still wants a session of which it asks nothing.

A client that opens a session with `beats` promises them. Without one for a minute, and without any
other request, the server closes the session: its process has ended, or is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from threading import Lock
from weakref import WeakSet

from weftline.sdk.background import BACKGROUND
from weftline.sdk.connection import AsyncConnection
from weftline.sdk.control_verbs import SessionState

log = logging.getLogger(__name__)

BEAT_S = 20.0  # a third of the server's minute, so that two may be lost
MOST_S = 5.0  # one takes no longer, because the others wait


def heartbeat_path(session: str) -> str:
    return f"/v1/session/{session}/heartbeat"


class Beating(ABC):
    """The owner of a session. While it lives, the server gets heartbeats of the session."""

    @abstractmethod
    def quiet_session(self) -> str | None:
        """The id of the session if it needs a heartbeat now."""

    @abstractmethod
    async def beat(self, session: str) -> None:
        """Send a heartbeat, from the background loop."""


class Heartbeats:
    """The owners of open sessions in this process. One coroutine serves all of them."""

    def __init__(self) -> None:
        self.owners: WeakSet[Beating] = WeakSet()
        self._is_running = False
        self._lock = Lock()

    def add(self, owner: Beating) -> None:
        """Send heartbeats for the owner's session from now on. Any thread may call this."""
        with self._lock:
            self.owners.add(owner)
            is_first, self._is_running = not self._is_running, True
        if is_first:
            BACKGROUND.start(self._run())

    async def _run(self) -> None:
        while self._goes_on():
            await asyncio.sleep(BEAT_S)
            await self.send()

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_running = bool(self.owners)
            return self._is_running

    async def send(self) -> None:
        """A heartbeat for each session that needs one."""
        for owner in list(self.owners):
            if (session := owner.quiet_session()) is None:
                continue
            try:
                await asyncio.wait_for(owner.beat(session), MOST_S)
            except Exception as error:
                # A patched HTTP client raises errors of its own, and no caller waits. The next
                # request of the session tells its user what is wrong.
                log.debug("no heartbeat for session %s: %r", session, error)

    def forget(self) -> None:
        """Start afresh after a fork: the sessions belong to the parent process."""
        self.owners, self._is_running, self._lock = WeakSet(), False, Lock()


class SessionBeat(Beating):
    """Sends the heartbeats of one session of the SDK, until it is closed or forgotten.

    The background loop sends them, so that a program whose own loop is busy keeps its session.
    """

    def __init__(self, state: SessionState, connection: AsyncConnection) -> None:
        self._state = state
        self._connection = connection
        self._twin: AsyncConnection | None = None

    def quiet_session(self) -> str | None:
        return None if self._state.closed else self._state.id

    async def beat(self, session: str) -> None:
        if self._twin is None:
            self._twin = self._connection.twin()
            self._twin.when_dropped(BACKGROUND.dispose)
        await self._twin.request("POST", heartbeat_path(session))


HEARTBEATS = Heartbeats()
os.register_at_fork(after_in_child=HEARTBEATS.forget)
