"""One engine that several servers use: each has ids of its own, and hears of the others' load.

The shared engine passes verbs to the engine and events to the servers. What the servers are told of
each other is decided in `ledger`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from weftline_engine import api
from weftline_engine.transport import wire
from weftline_engine.transport.tcp.share_ledger import EngineLedger

# Seconds between two reports to a server. Within them two servers may count the same room as free.
REPORT_S = 0.1


@dataclass(slots=True, eq=False)
class ServerSeat:
    """One server's use of the engine. `send` passes messages to it."""

    number: int
    send: Callable[..., None]
    running: set[str] = field(default_factory=set)  # ids of the server's ops that have not ended
    contexts: set[str] = field(default_factory=set)  # ids of its contexts that were not freed
    sequence: int = 0  # of the last event
    told: api.Elsewhere | None = None

    def outer(self, id: str) -> str:
        """The id by which the engine knows an op or a context of this server."""
        return f"{self.number}.{id}"

    def tell(self, events: Sequence[api.Event]) -> None:
        """Send events, numbered in the order in which this server gets them."""
        numbered = []
        for event in events:
            self.sequence += 1
            numbered.append(replace(event, sequence=self.sequence))
        if numbered:  # an empty frame would end the connection
            self.send(*numbered)


class SharedEngine:
    """A started engine and the servers that use it. All methods belong to the event loop."""

    def __init__(self, engine: api.Engine, description: api.Description) -> None:
        self.description = replace(description, is_shared=True)
        self._engine = engine
        self._ledger = EngineLedger(description.kv_tokens)
        self._seats: dict[int, ServerSeat] = {}
        self._last = 0  # number of a seat
        self._state: dict[type[api.Event], api.Event] = {}  # the last of each event about no op
        self._ended = asyncio.Event()  # an op may have ended
        self._changed = asyncio.Event()  # a server may have to be told

    def enter(self, send: Callable[..., None]) -> ServerSeat:
        """A server uses the engine from now on."""
        self._last += 1
        seat = self._seats[self._last] = ServerSeat(self._last, send)
        self._ledger.enter(seat.number)
        seat.tell(list(self._state.values()))
        self._report(seat)
        self._changed.set()
        return seat

    def leave(self, seat: ServerSeat) -> None:
        """Cancel all ops of a server that is gone, and free its contexts: it has retried the ops on
        other engines, or another server has.
        """
        del self._seats[seat.number]
        for op in list(seat.running):
            self._engine.cancel(seat.outer(op))
        for context in seat.contexts:
            self._engine.free(seat.outer(context))
        self._ledger.leave(seat.number)
        self._ended.set()
        self._changed.set()

    def perform(self, seat: ServerSeat, verb: wire.Message) -> None:
        """Pass a server's verb to the engine."""
        engine, outer = self._engine, seat.outer
        match verb:
            case wire.Submit(op):
                self._submit(seat, op)
            case wire.Feed():
                engine.feed(outer(verb.op), verb.offset, verb.part, verb.last)
            case wire.Update(op, hints):
                engine.update(outer(op), replace(hints, footprint=None))
            case wire.Cancel(op):
                engine.cancel(outer(op))
            case wire.Retain(context, retention):
                engine.retain(outer(context), retention)
            case wire.Free(context):
                seat.contexts.discard(context)
                engine.free(outer(context))
            case wire.ClaimRoom(claim):
                if self._ledger.grants is not None:
                    self._ledger.grants.claim(seat.number, claim)
                    self._changed.set()

    def _submit(self, seat: ServerSeat, op: api.Op) -> None:
        seat.running.add(op.id)
        seat.contexts.add(op.context)
        outer = seat.outer
        self._ledger.came(seat.number, op.id, outer(op.context), op.hints.footprint)
        self._changed.set()
        self._engine.submit(
            replace(
                op,
                id=outer(op.id),
                context=outer(op.context),
                parent=None if op.parent is None else outer(op.parent),
                guesses=replace(op.guesses, references=tuple(map(outer, op.guesses.references))),
                hints=replace(op.hints, footprint=None),
            )
        )

    async def pass_events(self) -> None:
        """Pass the engine's events to the servers that they are for. Raises EngineDied."""
        async for batch in self._engine.events():
            parts: dict[int, list[api.Event]] = {}
            for event in batch:
                if not event.op:
                    self._state[type(event)] = event
                    for number in self._seats:
                        parts.setdefault(number, []).append(event)
                    continue
                server, _, op = event.op.partition(".")
                seat = self._seats.get(int(server))
                self._note(int(server), op, event)
                if seat is not None:
                    self._own(seat, op, event, parts.setdefault(seat.number, []))
            for number, events in parts.items():
                self._seats[number].tell(events)
        raise api.EngineDied("its events ended")

    def _own(self, seat: ServerSeat, op: str, event: api.Event, part: list[api.Event]) -> None:
        """Add an event as the server of its op gets it."""
        if isinstance(event, api.ContextMoved):
            context = event.context.partition(".")[2]
            part.append(replace(event, op=op, context=context))
            return
        part.append(replace(event, op=op))
        if isinstance(event, (api.Finished, api.Failed, api.Paused)):
            seat.running.discard(op)
            self._ended.set()

    def _note(self, server: int, op: str, event: api.Event) -> None:
        """Tell the ledger what an event means to the other servers."""
        ledger = self._ledger
        match event:
            case api.ContextMoved():
                ledger.moved(server, event.context, event.residency, event.tokens, event.places)
            case api.Finished() | api.Paused() | api.Failed():
                ledger.ended(server, op, is_lost=isinstance(event, api.Failed))
            case _:
                return
        self._changed.set()

    async def report_forever(self) -> None:
        """Tell each server what the others have here, when that has changed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for seat in list(self._seats.values()):
                self._report(seat)
            await asyncio.sleep(REPORT_S)

    def _report(self, seat: ServerSeat) -> None:
        report = self._ledger.report(seat.number, seat.told)
        if report is not None:
            seat.told = report
            seat.tell([replace(report, time=time.monotonic())])

    async def drained(self) -> None:
        """Say that the engine leaves, and return when no op runs any more."""
        leaving = api.Availability(
            op="", attempt=0, sequence=0, time=time.monotonic(), available=False, leaving=True
        )
        self._state[api.Availability] = leaving
        for seat in self._seats.values():
            seat.tell([leaving])
        while any(seat.running for seat in self._seats.values()):
            self._ended.clear()
            await self._ended.wait()
