"""The events of an engine, numbered and stamped with the time, until they are sent."""

from __future__ import annotations

from collections.abc import Callable

from weftline_engine.api import Event


class EventLog:
    """Collects events, numbered from 1 over the engine's life. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._number = 0
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def add(self, op: str, attempt: int, event: Callable[..., Event], **fields: object) -> None:
        """Make an event of class `event` with these fields."""
        self._number += 1
        self._events.append(
            event(op=op, attempt=attempt, sequence=self._number, time=self.clock(), **fields)
        )

    def drain(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events
