"""Which slot of llama-server runs which call, and what is reported of contexts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.null.llama_desk import SHARED, Bench, bench
from weftline_engine import api
from weftline_engine.remote.common_tokens import common
from weftline_engine.remote.llamacpp.answer_pace import AnswerPace
from weftline_engine.remote.llamacpp.files import SavedFiles
from weftline_engine.remote.llamacpp.slots import (
    LEAST_COPY,
    MOST_STOPS,
    Seat,
    SlotBook,
)
from weftline_engine.remote.llamacpp.state_cut import StateCut


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_beginning(one: list[int], other: list[int]) -> None:
    """It is as long as a loop over both finds."""
    expected = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        expected += 1
    assert common(one, other) == expected


def test_a_call_goes_to_the_slot_that_holds_most_of_its_prompt() -> None:
    """Two conversations took a slot each. Their next calls go where each began."""
    desk = bench(3)
    first = desk.run((1, 2, 3))
    second = desk.run((4, 5, 6))
    assert (first.slot, second.slot) == (0, 1)
    again = desk.run((4, 5, 6, 7, 9))
    assert (again.slot, again.found) == (1, 4)  # 7 was computed, 8 was only sampled
    assert desk.run((1, 2, 3, 7, 9)).slot == 0


def test_an_empty_slot_is_taken_before_a_living_context_is_lost() -> None:
    """A third conversation overwrites neither of two others, and a fourth not the kept one."""
    desk = bench(3, copies=False)
    desk.run(tuple(range(50)), name="kept")
    desk.run(tuple(range(100, 150)), name="evictable")
    assert desk.run(tuple(range(200, 250)), name="freed").slot == 2
    desk.book.contexts.retain("kept", api.Retention.KEEP)
    desk.book.contexts.free("freed")
    assert desk.run(tuple(range(300, 350)), name="next").slot == 2
    assert desk.run(tuple(range(400, 450)), name="last").slot == 1


def test_the_plan_orders_what_waits() -> None:
    """Of two calls that wait, the later one goes first. Its application's turn is earlier."""
    desk = bench(1)
    desk.submit((1,), name="running")
    running = desk.seat()
    desk.submit((2,), name="first", application="a", turn=30.0)
    desk.submit((3,), name="second", application="b", turn=10.0)
    assert desk.seat() is None
    assert running is not None
    desk.end(running)
    seat = desk.seat()
    assert seat is not None and seat.call.op == "second"


def test_a_shared_beginning_is_computed_once() -> None:
    """Four calls wait: their common beginning is filled, written once, and read three times."""
    desk = bench(4)
    for last in range(4):
        desk.submit((*SHARED, last, last))
    (seed,) = desk.all()
    assert (seed.call.op, seed.call.tokens, seed.call.fills) == ("", SHARED, True)
    desk.book.release(seed, SHARED)
    seats = desk.all()
    assert len({seat.slot for seat in seats}) == 4
    assert [seat.found for seat in seats] == [len(SHARED)] * 4
    assert seats[0].slot == seed.slot and seats[0].save is not None
    assert seats[0].restore is None
    assert [seat.restore for seat in seats[1:]] == [seats[0].save] * 3
    assert [seat.save for seat in seats[1:]] == [None] * 3


def test_without_files_every_slot_computes_the_beginning() -> None:
    """No call waits for another, because none could use what the other computes."""
    desk = bench(4, copies=False)
    for last in range(4):
        desk.submit((*SHARED, last))
    seats = desk.all()
    assert [seat.found for seat in seats] == [0] * 4
    assert all(seat.save is None and seat.restore is None for seat in seats)


def test_children_wait_for_a_fill_that_runs() -> None:
    """A client's fill runs; a call that begins with its tokens waits, and another one does not."""
    desk = bench(3)
    desk.submit(SHARED, name="root", fills=True)
    root = desk.seat()
    desk.submit((*SHARED, 1), name="child")
    desk.submit((5, 6, 7), name="other")
    assert [seat.call.op for seat in desk.all()] == ["other"]
    assert root is not None
    desk.end(root)
    seat = desk.seat()
    assert seat is not None
    assert (seat.call.op, seat.slot, seat.found) == ("child", root.slot, len(SHARED))


@pytest.mark.parametrize(
    ("left", "cut", "begin"),
    [
        (40, StateCut.ANYWHERE, ["other"]),  # 320 tokens could be computed meanwhile, of 384
        (50, StateCut.ANYWHERE, ["second", "other"]),
        (40, StateCut.KEPT, ["", "other"]),  # such a state is not cut before the answer's end
    ],
)
def test_a_call_waits_for_an_answer_that_ends_soon(
    left: int, cut: StateCut, begin: list[str]
) -> None:
    """It begins as the running call does. Once that has ended, its slot is copied for all."""
    desk = bench(3, cut=cut)
    desk.submit((*SHARED, 1), name="first", left=left)
    first = desk.seat()
    assert first is not None
    desk.submit((*SHARED, 2), name="second")
    desk.submit((5, 6, 7), name="other")
    assert [seat.call.op for seat in desk.all()] == begin
    if "second" not in begin and "" not in begin:
        desk.end(first, output=(9, 9))
        seat = desk.seat()
        assert seat is not None
        assert (seat.call.op, seat.slot, seat.found) == ("second", first.slot, len(SHARED))


def test_how_long_an_answer_takes_is_measured() -> None:
    """A token of an answer may take as long as 50 of a prompt. Then fewer calls wait for answers.
    A prompt that was hardly computed, and a short answer, say nothing."""
    pace = AnswerPace()
    for _ in range(50):
        pace.note(1000, 1.0, 11, 0.5)
        pace.note(1, 1.0, 11, 0.5)
        pace.note(1000, 1.0, 1, 0.0)
    assert pace.ratio == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize(
    ("token_s", "share"), [(0.02, 0.005), (0.005, 0.02), (0.0002, 0.05), (None, 0.05)]
)
def test_a_copy_costs_less_where_computing_is_slow(token_s: float | None, share: float) -> None:
    """Then a slot is written for a part of its tokens that may not come back."""
    desk = bench(1)
    if token_s is not None:
        desk.book.pace.note(1000, 1000 * token_s, 0, 0.0)
    assert desk.book.pace.copy_share == pytest.approx(share)
    shared = LEAST_COPY * 3
    desk.run(tuple(range(shared + 40)))
    saved = desk.run((*range(shared), *range(9000, 9100))).save
    assert (saved is not None) == (share * (shared + 41) < 0.25 * 41)


def test_a_tenants_tokens_are_not_used_by_another() -> None:
    """The same prompt of another tenant finds nothing, and takes a slot afresh."""
    desk = bench(1)
    desk.run((1, 2, 3), salt="a")
    seat = desk.run((1, 2, 3), salt="b")
    assert (seat.found, seat.fresh) == (0, True)
    again = desk.run((1, 2, 3), salt="b")
    assert (again.found, again.fresh) == (3, False)


def test_a_call_that_did_not_begin_leaves_the_tokens_of_another_tenant() -> None:
    """Its slot was to begin afresh, and nothing was sent: the next call begins afresh too."""
    desk = bench(1)
    desk.run((1, 2, 3), salt="a")
    desk.submit((1, 2, 3), salt="b")
    seat = desk.seat()
    assert seat is not None and seat.fresh
    desk.book.release(seat, None)
    assert desk.run((1, 2, 3), salt="b").fresh
    assert not desk.run((1, 2, 3), salt="b").fresh


def test_a_slot_that_others_may_have_used_begins_afresh() -> None:
    """A running llama-server's slots hold something that nobody here knows."""
    desk = Bench(SlotBook(1, known=False))
    assert desk.run((1, 2, 3)).fresh
    assert not desk.run((1, 2, 3)).fresh


def test_what_is_left_of_contexts_is_reported_once() -> None:
    """A context is reported when its op has ended, when it is cut, and when it is gone."""
    desk = bench(1, copies=False)
    desk.run((1, 2, 3), name="a")
    assert desk.told() == {"a": (api.Residency.RESIDENT, 4)}
    assert desk.told() == {}
    desk.submit((1, 2, 9), name="b")
    seat = desk.seat()
    assert seat is not None
    assert desk.told() == {"a": (api.Residency.RESIDENT, 2)}
    desk.end(seat, (7, 8))
    assert desk.told() == {"b": (api.Residency.RESIDENT, 4)}
    desk.book.contexts.free("a")
    assert desk.told() == {}
    desk.run((5, 6), name="c")
    assert desk.told() == {
        "a": (api.Residency.DROPPED, 0),
        "b": (api.Residency.DROPPED, 0),
        "c": (api.Residency.RESIDENT, 3),
    }
    assert desk.book.contexts.tokens_of("a") is None
    assert desk.book.contexts.tokens_of("b") == (1, 2, 9, 7, 8)


def test_a_paused_context_is_written_and_read_again() -> None:
    """The server swaps it out; others take its slot; the call that goes on reads the file."""
    desk = bench(1)
    desk.run(SHARED, name="paused")
    desk.book.contexts.retain("paused", api.Retention.SWAP)
    ((slot, file),) = desk.book.swaps()
    assert (slot, file.tokens) == (0, (*SHARED, 7))
    desk.book.done(file)
    assert desk.book.swaps() == []
    other = desk.run((5, 6))
    assert other.save is None
    assert desk.told()["paused"] == (api.Residency.HOST, len(SHARED) + 1)
    tokens = desk.book.contexts.tokens_of("paused")
    assert tokens is not None
    seat = desk.run((*tokens, 9))
    assert (seat.restore, seat.found) == (file, len(SHARED) + 1)


def test_a_kept_context_is_written_rather_than_lost() -> None:
    """There is no other slot, so its slot is written before another call takes it."""
    desk = bench(1)
    desk.run(SHARED, name="kept")
    desk.book.contexts.retain("kept", api.Retention.KEEP)
    seat = desk.run((5, 6))
    assert seat.save is not None and seat.save.tokens == (*SHARED, 7)
    assert desk.told()["kept"] == (api.Residency.HOST, len(SHARED) + 1)


def test_llama_servers_cache_in_memory_gives_no_tenant_what_another_has() -> None:
    """It keeps what slots with windows lose, and does not know tenants. It is asked where less than
    half of a slot stays: such a call begins afresh once there are two tenants."""
    desk = bench(1, cut=StateCut.WINDOWS)
    desk.run(SHARED, salt="a")
    assert [desk.run((at, *SHARED), salt="a").fresh for at in (1, 2)] == [False, False]
    assert desk.run((1, *SHARED), salt="b").fresh
    assert desk.run((1, *SHARED), salt="a").fresh
    assert not desk.run((1, *SHARED, 5), salt="a").fresh
    assert desk.run((2, *SHARED), salt="a").fresh


def test_an_open_prompt_is_filled_when_nobody_waits() -> None:
    """All but its last token, from `least_early` new tokens on. It runs when it is complete."""
    desk = bench(2)
    desk.submit(tuple(range(60)), name="open", open=True)
    assert desk.seat(60) is None and desk.seat(None) is None
    early = desk.seat(59)
    assert early is not None and early.call.tokens == tuple(range(59))
    desk.book.release(early, early.call.tokens)
    assert desk.seat(59) is None
    call = desk.calls["open"]
    call.tokens, call.open = tuple(range(70)), False
    seat = desk.seat()
    assert seat is not None and (seat.slot, seat.found) == (early.slot, 59)


def test_files_give_way() -> None:
    """The state used longest ago gives way, one that is read never, one of a kept context last."""
    files = SavedFiles(10, 2, StateCut.ANYWHERE)
    first = files.add((1, 2, 3), "", 1)
    second = files.add((4, 5, 6), "", 2)
    assert first is not None and second is not None
    assert files.add(tuple(range(11)), "", 3) is None
    third = files.add((7, 8), "", 3, kept={(1, 2)})
    assert third is not None and third.name == second.name
    assert list(files.of("")) == [first, third]
    first.users = third.users = 1
    assert files.add((9,), "", 4) is None


@dataclass
class Machine:
    """A llama-server that holds what it was told to, and checks what the book says of it."""

    desk: Bench
    cut: StateCut
    held: dict[int, tuple[tuple[int, ...], str]] = field(default_factory=dict)  # by slot
    files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    running: dict[int, Seat] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def take(self) -> None:
        """Give slots to all calls that may begin."""
        while (seat := self.desk.seat()) is not None:
            assert seat.slot not in self.running
            self.running[seat.slot] = seat
            tokens, salt = self.held.get(seat.slot, ((), ""))
            assert seat.fresh or seat.restore or salt == seat.call.salt or not tokens
            if seat.save is not None:
                self.files[seat.save.name] = tokens
            for border in seat.borders:
                assert self.cut.fills_first
                assert tokens[: len(border.tokens)] == border.tokens
                self.files[border.name] = border.tokens
            if seat.restore is not None:
                tokens, salt = self.files[seat.restore.name], seat.call.salt
                assert self.cut is StateCut.ANYWHERE or seat.found == len(tokens)
            assert not seat.found or salt == seat.call.salt
            assert tokens[: seat.found] == seat.call.tokens[: seat.found]

    def submit(self, which: int, tail: int) -> None:
        tokens = (*SHARED[: LEAST_COPY * (which % 3)], *range(tail + 1), which)
        shared = len(tokens) - tail - 2
        call = self.desk.submit(
            tokens, salt="ab"[which % 2], fills=tail == 3, borders=(LEAST_COPY, shared)
        )
        self.names.append(call)

    def end(self, which: int, tail: int) -> None:
        if self.running:
            seat = self.running.pop(list(self.running)[which % len(self.running)])
            output = () if seat.call.fills else tuple(range(tail + 1))
            tokens = (*seat.call.tokens, *output)
            self.held[seat.slot] = tokens[:-1] if output else tokens, seat.call.salt
            if seat.call.op:
                self.desk.end(seat, output)
            else:
                self.desk.book.release(seat, seat.call.tokens, computed=True)

    def fail(self, which: int, tail: int) -> None:
        if self.running:
            seat = self.running.pop(list(self.running)[which % len(self.running)])
            self.held[seat.slot] = seat.call.tokens[: seat.found], seat.call.salt
            self.desk.book.contexts.fail(seat.call.op)
            self.desk.book.release(seat, seat.call.tokens[: seat.found])

    def retain(self, which: int, tail: int) -> None:
        if self.names:
            self.desk.book.contexts.retain(
                self.names[which % len(self.names)], list(api.Retention)[tail]
            )

    def free(self, which: int, tail: int) -> None:
        if self.names:
            self.desk.book.contexts.free(self.names[which % len(self.names)])

    def swap(self, which: int, tail: int) -> None:
        for slot, file in self.desk.book.swaps():
            self.files[file.name] = self.held[slot][0]
            self.desk.book.done(file)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "end", "fail", "retain", "free", "swap"]),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(MOVES, st.integers(1, 3), st.booleans(), st.sampled_from(StateCut))
def test_every_call_gets_a_slot(
    moves: list[tuple[str, int, int]], slots: int, copies: bool, cut: StateCut
) -> None:
    """A slot runs one call at a time, holds what is said of it, and no call waits for ever."""
    machine = Machine(bench(slots, copies, cut, most_stops=MOST_STOPS), cut)
    for move, which, tail in moves:
        getattr(machine, move)(which, tail)
        machine.take()
        for one in machine.desk.book.contexts.reports():
            assert (one.tokens == 0) == (one.residency is api.Residency.DROPPED)
    while machine.running:
        machine.end(0, 0)
        machine.take()
    seated = {seat.call.op for seat in machine.desk.seats}
    assert set(machine.names) <= seated
