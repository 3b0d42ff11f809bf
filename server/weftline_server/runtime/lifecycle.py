"""The server's life: it starts engines, goes on with stored sessions, drains, and shuts down."""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from weftline.contract.errors import EngineUnavailable, WeftlineError
from weftline_engine import api
from weftline_server.runtime.driver import Driver, TaskObserver
from weftline_server.runtime.other_servers import Membership, SessionHandover
from weftline_server.session.resumption import runs_once
from weftline_server.session.session import ServerSession
from weftline_server.session.task import UNDER_WAY

log = logging.getLogger("weftline.service")

# Seconds between two searches for expired sessions, at most and at least: a session is closed at
# most a tenth of its idle time late. A search looks at each of some ten thousand sessions.
SWEEP_S, LEAST_SWEEP_S = 30.0, 0.2
POLL_S = 0.02  # between two checks during a drain whether calls still run
# For how long a session whose calls run stays, so that short calls end where they began.
STAY_S = 0.5


class Draining(EngineUnavailable):
    """This server ends, and takes no new work. Clients know this error by its base class."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down", retry_after_s=5.0)

    @property
    def type(self) -> str:
        """The name on the wire."""
        return EngineUnavailable.__name__


class SessionHolds:
    """The sessions of requests under way which no other server can go on with."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[ServerSession, int] = WeakKeyDictionary()

    def add(self, session: ServerSession) -> None:
        self._counts[session] = self._counts.get(session, 0) + 1

    def remove(self, session: ServerSession) -> None:
        self._counts[session] = max(0, self._counts.get(session, 0) - 1)

    def has(self, session: ServerSession) -> bool:
        return self._counts.get(session, 0) > 0


class Lifecycle:
    """Starts and ends what a driver runs. `draining` says that no new work is taken."""

    def __init__(
        self,
        driver: Driver,
        member: Membership | None = None,
        departure: SessionHandover | None = None,
    ) -> None:
        self.member = member  # of the servers that share a store
        self.draining = False
        self.holds = SessionHolds()
        self._departure = departure
        self.start_error: Exception | None = None
        self._driver = driver
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start every engine. Raises EngineDied or WeftlineError, and keeps it in `start_error`."""
        driver, journal = self._driver, self._driver.registry.journal
        try:
            await driver.dispatcher.start(driver.reports)
            if self.member is not None:
                await self.member.join(" ".join(sorted(driver.dispatcher.catalogue.models)))
        except (api.EngineDied, WeftlineError) as error:
            self.start_error = error
            await driver.dispatcher.close()
            if journal is not None:
                await journal.close()
            raise
        if journal is not None:
            journal.start()
            if self.member is None:
                driver.resume(journal.stored)
            else:
                self.member.run(driver)
        self._sweeper = asyncio.create_task(self._sweep_forever())

    async def hand_over(self, within_s: float) -> bool:
        """Take no new work, and give every stored session to the other servers. False where there
        are no others.

        A session whose calls run moves after STAY_S: these calls run again elsewhere. It stays
        longer, for `within_s` at most, where something would be lost: a call with effects `once`,
        or a request that nobody may send again.
        """
        self.draining = True
        departure, registry = self._departure, self._driver.registry
        if departure is None or not await departure.begin():
            return False
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (waited := loop.time() - began) < within_s:
            stored = [one for one in registry if departure.owns(one)]
            moving = [one for one in stored if self._may_move(one, waited)]
            if moving:
                await departure.give(moving, self._driver)
            elif stored or registry.busy():
                await asyncio.sleep(POLL_S)
            else:
                break
        return True

    def _may_move(self, session: ServerSession, waited: float) -> bool:
        execution = session.execution
        if self.holds.has(session):
            return False
        if not execution.under_way:
            return True
        return waited >= STAY_S and not any(
            run.state in UNDER_WAY and runs_once(execution, id)
            for id, run in session.primitives.items()
        )

    async def drain(self, within_s: float) -> None:
        """Take no new work, let calls end within `within_s` seconds, then close every session."""
        self.draining = True
        try:
            async with asyncio.timeout(within_s):
                while self._driver.registry.busy():  # noqa: ASYNC110 - a call's end sets no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            log.warning("calls still ran after %g s and are cancelled", within_s)
        await self._driver.shut_down()

    async def shut_down(self) -> None:
        """Close every session at once, leave the other servers, then stop the engines.

        The server has stopped listening. As long as it listens, it passes requests to the others.
        """
        self.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._driver.shut_down()
        await self.leave()
        await self._driver.dispatcher.close()

    async def leave(self) -> None:
        """Let the other servers of the store adopt what is left here, without waiting."""
        if self.member is not None:
            await self.member.leave()

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Add an engine that runs on another host. Raises InvalidRequest if the engine does not
        fit."""
        await self._driver.dispatcher.join(name, engine, description)

    def observe(self, *observers: TaskObserver) -> None:
        """Tell `observers` about every task and session that ends from now on."""
        self._driver.observers += observers

    async def _sweep_forever(self) -> None:
        while True:
            shortest_s = self._driver.registry.shortest_s
            await asyncio.sleep(min(SWEEP_S, max(LEAST_SWEEP_S, shortest_s / 10)))
            try:
                self._driver.sweep()
            except Exception:  # without this task no session would ever expire again
                log.exception("the expired sessions could not be closed")
