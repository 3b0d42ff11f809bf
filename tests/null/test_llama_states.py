"""Where the book of llama-server's slots believes that a model's states are kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.llama_desk import SHARED, bench
from weftline_engine import api
from weftline_engine.remote.llamacpp.slots import (
    BORDER_SHARE,
    LEAST_COPY,
    MOST_STOPS,
    Seat,
    most_stops,
)
from weftline_engine.remote.llamacpp.state_cut import StateCut, after_prompt, cut_of
from weftline_engine.remote.llamacpp.state_size import state_bytes


def test_a_recurrent_state_is_kept_where_a_first_call_is_likely_to_part() -> None:
    """The prompt is filled up to there. The next one begins there, and is filled no further."""
    desk = bench(2, cut=StateCut.KEPT)
    first = desk.run((*SHARED, 1, 2, 3), borders=(len(SHARED),))
    assert (desk.seats[0].call.tokens, first.found) == (SHARED, len(SHARED))
    assert first.save is not None and first.save.tokens == SHARED
    assert desk.run((*SHARED, 4, 5, 6), borders=(len(SHARED),)).found == len(SHARED)
    assert len(desk.seats) == 3


def test_a_state_is_kept_before_the_borders_of_a_prompt() -> None:
    """A prompt that parts there begins there. When the slot is taken, a file ends at the last one,
    and the next prompt that parts there is read from it."""
    begin, middle, end = (times * LEAST_COPY for times in (1, 3, 5))
    tokens = tuple(range(end + 40))
    borders = (begin, end, middle, middle - 10)
    for cut in (StateCut.KEPT, StateCut.IN_SLOTS):
        desk = bench(1, cut=cut, most_stops=MOST_STOPS)
        first = desk.run(tokens, borders=borders)
        assert (first.found, first.call.stops) == (begin, (middle - 1, end - 1))
        parts = (*tokens[:middle], *range(5000, 5000 + end))
        seat = desk.run(parts)
        assert seat.found == (middle - 1 if cut is StateCut.KEPT else middle)
        assert [len(one.tokens) for one in seat.borders] == [end + 40 - 3, end]
        again = desk.run((*tokens[:end], 6, 6), borders=borders)
        assert again.restore in seat.borders and again.found == end
    assert bench(1, cut=StateCut.KEPT).run(tokens, borders=borders).call.stops == ()
    assert bench(1, most_stops=MOST_STOPS).run(tokens, borders=borders).call.stops == ()


def test_a_file_for_other_prompts_is_a_small_part_of_all() -> None:
    desk = bench(1, cut=StateCut.KEPT, most_stops=MOST_STOPS)
    long = int(BORDER_SHARE * 10_000) + 2
    desk.run(SHARED)
    desk.run((*SHARED, *range(long)), borders=(long,))
    seat = desk.run((9, *SHARED))
    assert [len(one.tokens) for one in seat.borders] == [len(SHARED) + long - 3]


def test_a_llama_server_that_keeps_no_stops_is_believed_at_the_third_miss() -> None:
    """It may be older than the field, or keep fewer. A hit in between begins the count anew."""
    desk = bench(1, copies=False, cut=StateCut.KEPT, most_stops=MOST_STOPS)
    border = len(SHARED)

    def seat() -> Seat:
        return desk.run((*SHARED, *[desk.names] * 600), borders=(border,))

    assert seat().call.stops == (border - 1,)
    said = []
    for cached in (0, 0, border - LEAST_COPY, 0, border - LEAST_COPY - 1, 0):
        found = seat()
        assert found.at_stop and found.found == border - 1
        said.append(desk.book.learn(found, cached))
    assert not any(said[:-1]) and "message_delimiters" in said[-1]
    found = seat()
    assert (found.at_stop, found.found, found.call.stops) == (False, 0, ())


def test_a_recurrent_state_is_continued_at_its_end_or_at_a_checkpoint() -> None:
    """A prompt that parts from a slot's tokens elsewhere is computed from the checkpoint before,
    which llama-server keeps four tokens before the end of a prompt."""
    desk = bench(1, cut=StateCut.KEPT)
    desk.run(SHARED)
    assert desk.run((*SHARED, 7, 9)).found == len(SHARED) + 1  # the last of (7, 8) is not there
    desk = bench(1, cut=StateCut.KEPT)
    desk.run(SHARED)
    assert desk.run((*SHARED, 5)).found == len(SHARED) - 4
    desk = bench(1, cut=StateCut.KEPT)
    desk.run(SHARED)
    desk.run((*SHARED[:-10], 5))
    fill = desk.seats[1]  # up to where they part, from nothing
    assert (fill.call.tokens, fill.found) == (SHARED[:-10], 0)


def test_a_recurrent_slot_is_written_at_its_end_and_at_its_checkpoint() -> None:
    """The next turn begins with the answer or not, and finds a file either way."""
    for more, found in (((7, 9), len(SHARED) + 1), ((5, 6), len(SHARED) - 3)):
        desk = bench(1, cut=StateCut.KEPT)
        desk.run(SHARED)
        seat = desk.run((9, *SHARED))
        assert seat.save is not None and seat.save.tokens == (*SHARED, 7)
        assert [one.tokens for one in seat.borders] == [SHARED[:-3]]
        seat = desk.run((*SHARED, *more))
        assert seat.restore is not None and seat.found == found


def test_whole_windows_are_cut_anywhere_in_a_slot_and_not_in_a_file() -> None:
    """A file has only the keys of the last window. A slot that was read from it has no more."""
    half = len(SHARED) // 2
    desk = bench(1, cut=StateCut.IN_SLOTS)
    desk.run(SHARED)
    assert desk.run((*SHARED[:half], 5)).found == half
    assert len(desk.seats) == 2
    for reads in (False, True):
        desk = bench(1, cut=StateCut.IN_SLOTS)
        desk.run(SHARED)
        saved = desk.run((9, *SHARED)).save
        if reads:
            seat = desk.run((*SHARED, 7, 9))
            assert (seat.restore, seat.found) == (saved, len(SHARED) + 1)
        desk.run((*SHARED[:half], 5))
        fill = desk.seats[-2]  # up to where they part, from nothing
        assert (fill.call.tokens, fill.found, fill.restore) == (SHARED[:half], 0, None)


def test_siblings_of_a_recurrent_model_read_a_file_that_ends_where_they_part() -> None:
    """The beginning is filled first, so a slot ends exactly there when it is written."""
    desk = bench(2, cut=StateCut.KEPT)
    for at in range(3):
        desk.submit((*SHARED, at, at))
    fill = desk.seat()
    assert fill is not None and fill.call.tokens == SHARED
    desk.book.release(fill, SHARED, computed=True)
    one, two = desk.all()
    assert one.save is not None and one.save.tokens == SHARED and one.found == len(SHARED)
    assert two.restore is one.save and two.found == len(SHARED)


def test_where_prompts_of_a_recurrent_model_have_parted_once_they_part_again() -> None:
    """The second call shows the border. Its prompt is filled up to there and written, so the third
    finds it. A state that can be cut anywhere needs no file for that."""
    calls = [(*SHARED, *range(at, at + 20)) for at in (100, 200, 300)]
    desk = bench(1, cut=StateCut.KEPT)
    first, second, third = (desk.run(tokens) for tokens in calls)
    fill = desk.seats[1]
    assert (fill.call.op, fill.call.tokens, fill.found) == ("", SHARED, 0)
    assert second.save is not None and second.save.tokens == SHARED
    assert (first.found, second.found, third.found) == (0, len(SHARED), len(SHARED))
    assert len(desk.seats) == 4
    desk = bench(1)
    assert [desk.run(tokens).found for tokens in calls] == [0, len(SHARED), len(SHARED)]
    assert len(desk.seats) == 3


@pytest.mark.parametrize("cut", [StateCut.ANYWHERE, StateCut.KEPT])
def test_what_is_computed_again_for_want_of_a_state_is_counted(cut: StateCut) -> None:
    """A slot holds the beginning of the second prompt, and no state behind it. The third finds the
    state that the second has left there."""
    desk, lost = bench(3, cut=cut), []
    for last in range(3):
        prompt = (*SHARED, *range(last, last + 9))
        desk.run(prompt, name=f"op{last}")
        lost.append(desk.calls[f"op{last}"].lost)
    assert lost == [0, 0 if cut is StateCut.ANYWHERE else len(SHARED), 0]


def test_a_book_learns_where_a_models_states_can_be_cut() -> None:
    """llama-server computed again what a slot held: only ends and checkpoints count from then on.
    It computed again what was read from a file that ended there: no file is written any more."""
    desk = bench(1)
    desk.run(SHARED)
    seat = desk.run((*SHARED[:-10], 5))
    assert seat.found == len(SHARED) - 10
    assert desk.book.learn(seat, seat.found) == ""
    assert StateCut.KEPT.value in desk.book.learn(seat, 0)
    desk.run((*SHARED[:-20], 5))
    assert (desk.seats[2].call.op, desk.seats[2].found) == ("", 0)
    assert desk.book.copies
    desk.run(SHARED, name="kept")
    desk.book.contexts.retain("kept", api.Retention.KEEP)
    desk.run((5, 6))
    seat = desk.run((*SHARED, 7, 9))
    assert seat.restore is not None
    assert StateCut.WINDOWS.value in desk.book.learn(seat, 0)
    assert not desk.book.copies
    assert desk.run((5, 6, 8)).save is None


@pytest.mark.parametrize(
    ("metadata", "cut"),
    [
        ({"llama.block_count": 2}, StateCut.ANYWHERE),
        ({"lfm2.shortconv.l_cache": 3}, StateCut.KEPT),
        ({"qwen35.ssm.state_size": 128, "x.attention.sliding_window": 0}, StateCut.KEPT),
        ({"gemma3.attention.sliding_window": 1024}, StateCut.WINDOWS),
        ({"phi3.attention.sliding_window": 0}, StateCut.ANYWHERE),
    ],
)
def test_a_files_settings_say_where_states_can_be_cut(
    metadata: dict[str, Any], cut: StateCut
) -> None:
    assert cut_of(metadata) is cut


GATED = {
    "qwen35.block_count": 32,
    "qwen35.embedding_length": 2560,
    "qwen35.attention.head_count_kv": 4,
    "qwen35.attention.recurrent_layers": [True, True, True, False] * 8,
    "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.state_size": 128,
    "qwen35.ssm.group_count": 16,
    "qwen35.ssm.inner_size": 4096,
}


SHORT = {
    "lfm2.block_count": 16,
    "lfm2.embedding_length": 1024,
    "lfm2.attention.head_count_kv": [0, 0, 8] * 5 + [0],
    "lfm2.shortconv.l_cache": 3,
}


WINDOWED = {
    "gemma3.block_count": 48,
    "gemma3.attention.head_count_kv": 8,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.attention.sliding_window": 1024,
}


@pytest.mark.parametrize(
    ("architecture", "settings", "size", "stops"),
    [
        ("qwen35", GATED, 24 * (3 * 8192 + 128 * 4096) * 4, 2),
        ("lfm2", SHORT, 11 * 2 * 1024 * 4, MOST_STOPS),
        ("gemma3", WINDOWED, 1024 * 48 * 8 * 512 * 2, 1),
        ("llama", {"llama.block_count": 32, "llama.attention.head_count_kv": 8}, 0, MOST_STOPS),
    ],
)
def test_as_many_states_are_kept_as_memory_allows(
    architecture: str, settings: dict[str, Any], size: int, stops: int
) -> None:
    """Those of the borders of all of eight slots take a gibibyte."""
    assert state_bytes({"general.architecture": architecture, **settings}) == size
    assert most_stops(size, 8) == stops


@pytest.mark.parametrize(
    ("before", "found", "prompt", "after"),
    [
        ((), 0, 1000, (484, 996)),
        ((), 0, 516, (512,)),
        ((996,), 996, 1200, (996, 1196)),
        ((100, 996), 500, 2000, (100, 1484, 1996)),
        ((), 500, 1016, (500, 1012)),
        ((), 1000, 1002, (1000,)),
        (tuple(range(0, 320, 10)), 400, 800, (0, *range(40, 320, 10), 400, 796)),
        (tuple(range(0, 6400, 200)), 6400, 6800, (*range(400, 6400, 200), 6400, 6796)),
    ],
)
def test_the_checkpoints_after_a_prompt(
    before: tuple[int, ...], found: int, prompt: int, after: tuple[int, ...]
) -> None:
    assert after_prompt(before, found, prompt) == after
