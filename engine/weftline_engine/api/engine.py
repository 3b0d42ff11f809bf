"""The verbs of an engine, as the server calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from weftline_engine.api.description import Description
from weftline_engine.api.engine_events import Event
from weftline_engine.api.ops import Claim, Fed, Hints, Op, Retention


class EngineDied(Exception):
    """The engine has ended, and with it every op that it had. `Engine.events` raises it."""


class Engine(Protocol):
    """An engine as the server sees it. All verbs return at once; results are events."""

    async def start(self) -> Description:
        """Load the model, and describe the engine. Raises EngineDied with a reason for the user."""
        ...

    def submit(self, op: Op) -> None: ...

    def feed(self, op: str, offset: int, part: Fed, last: bool) -> None: ...

    def update(self, op: str, hints: Hints) -> None: ...

    def cancel(self, op: str) -> None: ...

    def retain(self, context: str, retention: Retention) -> None: ...

    def free(self, context: str) -> None: ...

    def events(self) -> AsyncIterator[list[Event]]:
        """The events of one step at a time, until `close`. Raises EngineDied if the engine dies."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class HasMetrics(Protocol):
    """An engine with metrics of its own. The server passes them on under their names."""

    async def metrics(self) -> bytes:
        """Prometheus's text format; empty if they are not available now."""
        ...


@runtime_checkable
class IsShared(Protocol):
    """An engine that other servers use, too: its KV cache is shared out by its own ledger."""

    def claim(self, claim: Claim) -> None:
        """Say what the applications of this server need. The answer is an `Elsewhere` event."""
        ...
