"""The server's life: it starts engines, goes on with stored sessions, drains, and shuts down."""

from __future__ import annotations

import asyncio
import logging

from weftline.contract.errors import WeftlineError
from weftline_engine import api
from weftline_server.runtime.driver import Driver, TaskObserver

log = logging.getLogger("weftline.service")

SWEEP_S = 30.0  # seconds between two searches for expired sessions
POLL_S = 0.02  # between two checks during a drain whether calls still run


class Lifecycle:
    """Starts and ends what a driver runs. `draining` says that no new work is taken."""

    def __init__(self, driver: Driver) -> None:
        self.draining = False
        self.start_error: Exception | None = None
        self._driver = driver
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start every engine. Raises EngineDied or WeftlineError, and keeps it in `start_error`."""
        driver, journal = self._driver, self._driver.registry.journal
        try:
            await driver.dispatcher.start(driver.reports)
        except (api.EngineDied, WeftlineError) as error:
            self.start_error = error
            await driver.dispatcher.close()
            if journal is not None:
                await journal.close()
            raise
        if journal is not None:
            journal.start()
            driver.resume(journal)
        self._sweeper = asyncio.create_task(self._sweep_forever())

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
        """Close every session at once, then stop the engines."""
        self.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._driver.shut_down()
        await self._driver.dispatcher.close()

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Add an engine that runs on another host. Raises InvalidRequest if the engine does not
        fit."""
        await self._driver.dispatcher.join(name, engine, description)

    def observe(self, *observers: TaskObserver) -> None:
        """Tell `observers` about every task and session that ends from now on."""
        self._driver.observers += observers

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self._driver.sweep()
            except Exception:  # without this task no session would ever expire again
                log.exception("the expired sessions could not be closed")
