"""A book of llama-server's slots, and llama-server in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weftline_engine import api
from weftline_engine.remote.llamacpp.slots import LEAST_COPY, Seat, SlotBook, SlotCall
from weftline_engine.remote.llamacpp.state_cut import StateCut

SHARED = tuple(range(1000, 1000 + 3 * LEAST_COPY))  # a beginning that is worth a copy


@dataclass
class Bench:
    """A book, and llama-server in its place: calls end when they are told to."""

    book: SlotBook
    seats: list[Seat] = field(default_factory=list)
    calls: dict[str, SlotCall] = field(default_factory=dict)
    names: int = 0

    def submit(
        self,
        tokens: tuple[int, ...],
        *,
        name: str = "",
        salt: str = "",
        fills: bool = False,
        open: bool = False,
        left: int = 0,
        borders: tuple[int, ...] = (),
        returns: api.Return = api.Return.SELDOM,
        **hints: Any,
    ) -> str:
        self.names += 1
        name = name or f"op{self.names}"
        kind = api.Kind.FILL if fills else api.Kind.GENERATE
        guesses = api.Guesses(borders=borders, returns=returns)
        op = api.Op(id=name, kind=kind, context=name, salt=salt, tokens=tokens, guesses=guesses)
        self.book.contexts.begin(op, tokens)
        wish = api.Hints(**hints)
        self.calls[name] = SlotCall(
            name, tokens, salt, fills=fills, hints=wish, open=open, left=left or 1000 * (not fills)
        )
        self.calls[name].borders = borders
        self.book.add(self.calls[name])
        return name

    def seat(self, least_early: int | None = None) -> Seat | None:
        seat = self.book.next(least_early)
        if seat is not None:
            self.seats.append(seat)
            for file in (seat.save, *seat.borders, seat.restore):
                if file is not None:
                    self.book.done(file)
        return seat

    def all(self) -> list[Seat]:
        found = []
        while (seat := self.seat()) is not None:
            found.append(seat)
        return found

    def end(self, seat: Seat, output: tuple[int, ...] = ()) -> None:
        """The last token of an output is not in the slot."""
        tokens = (*seat.call.tokens, *output)
        held = len(tokens) - (1 if output else 0)
        self.book.end(seat, seat.call.op, tokens, held)

    def run(
        self, tokens: tuple[int, ...], output: tuple[int, ...] = (7, 8), **options: Any
    ) -> Seat:
        self.submit(tokens, **options)
        seat = self.seat()
        assert seat is not None
        if not seat.call.op:  # a beginning is filled first
            self.book.release(seat, seat.call.tokens, computed=True)
            seat = self.seat()
            assert seat is not None
        self.end(seat, output)
        return seat

    def told(self) -> dict[str, tuple[api.Residency, int]]:
        return {one.context: (one.residency, one.tokens) for one in self.book.contexts.reports()}


def bench(
    slots: int,
    copies: bool = True,
    cut: StateCut = StateCut.ANYWHERE,
    *,
    most_stops: int = 0,
) -> Bench:
    saved = 10_000 if copies else 0
    return Bench(SlotBook(slots, most_saved=saved, cut=cut, most_stops=most_stops))
