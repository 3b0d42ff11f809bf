"""Responses that are made in the background: their events so far, for those who follow them.

Each is a task of the event loop. When it has ended its events stay for a while, so that a client
whose connection broke can read the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from weftline.contract.errors import Overloaded, WeftlineError
from weftline_server.journal.kept_objects import KeptConfig

Json = dict[str, Any]

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20  # of the events of responses that have ended


class BackgroundResponse:
    """The events of a response. `so_far` makes the response as it stands, and `cancel` ends its
    calls."""

    def __init__(self, first: Json, so_far: Callable[[], Json], cancel: Callable[[], None]) -> None:
        self._last = first  # of the events that have the whole response
        self.first = 0  # the number of the first event that this server tells
        self.fault: WeftlineError | None = None  # for which the server ends it
        self._so_far = so_far
        self.is_cancelled = False
        self.ended: float | None = None
        self.size = 0
        self._cancel = cancel
        self._events: list[bytes] = []
        self._grown = asyncio.Event()

    @property
    def body(self) -> Json:
        """The response as it stands."""
        return self._so_far() if self._last["status"] == "in_progress" else self._last

    def tell(self, event: bytes, response: Json | None) -> None:
        """Add an event, which may have the whole response, and wake those who follow."""
        self._last = response or self._last
        self._events.append(event)
        self.size += len(event)
        self._wake()

    def end(self) -> None:
        """No event comes any more."""
        self.ended = time.monotonic()
        self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def cancel(self) -> None:
        """End the calls, and return when the response has ended."""
        if self.ended is None:
            self.is_cancelled = True
            self._cancel()
        await self.wait()

    def fail(self, fault: WeftlineError) -> None:
        """End the calls with this error."""
        self.fault = fault
        self._cancel()

    async def wait(self) -> None:
        """Return when the response has ended."""
        while self.ended is None:
            await self._grown.wait()

    async def follow(self, at: int) -> AsyncGenerator[bytes, None]:
        """The events from number `at` on, as they come."""
        while True:
            at = max(at, self.first)
            while at - self.first < len(self._events):
                yield self._events[at - self.first]
                at += 1
            if self.ended is not None:
                return
            await self._grown.wait()


class BackgroundResponses:
    """The responses of all tenants that run, or have ended a short time ago."""

    def __init__(self, config: KeptConfig) -> None:
        self._config = config
        self._known: dict[tuple[str, str], BackgroundResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, tenant: str, id: str) -> BackgroundResponse | None:
        """The response; None if it does not run here and its events are gone."""
        self._forget_old()
        return self._known.get((tenant, id))

    def admit(self, tenant: str) -> None:
        """Raise Overloaded if the tenant has as many of them as it may."""
        running = sum(
            one.ended is None for (whose, _), one in self._known.items() if whose == tenant
        )
        if running >= self._config.max_background:
            raise Overloaded(
                f"{running} responses of yours run in the background: wait until one has ended",
                param="background",
                retry_after_s=1.0,
            )

    def begin(
        self, tenant: str, id: str, made: BackgroundResponse, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Run `work`, which tells of the response until it ends."""
        self._forget_old()
        self._known[tenant, id] = made

        async def run() -> None:
            try:
                await work()
            except Exception:  # nobody waits for it who could be told
                log.exception("a bug in the server ended a response in the background")
            finally:
                made.end()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, tenant: str, conversation: str, fault: WeftlineError) -> None:
        """End what runs here for this conversation."""
        for (whose, _), one in self._known.items():
            of = one.body["conversation"]
            if whose == tenant and one.ended is None and of == {"id": conversation}:
                one.fail(fault)

    def forget(self, tenant: str, id: str) -> None:
        """The response was deleted, or goes on elsewhere."""
        self._known.pop((tenant, id), None)

    async def close(self) -> None:
        """End what still runs here."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget_old(self) -> None:
        """Forget the events of those that ended long ago, and the oldest beyond MOST_BYTES."""
        oldest = time.monotonic() - self._config.events_s
        ended = {key: one for key, one in self._known.items() if one.ended is not None}
        size = sum(one.size for one in ended.values())
        for key, one in sorted(ended.items(), key=lambda item: item[1].ended or 0.0):
            if one.ended is not None and one.ended >= oldest and size <= MOST_BYTES:
                return
            size -= one.size
            del self._known[key]
