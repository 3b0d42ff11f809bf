"""The next batch of an items engine: who comes first, and what one batch may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Hints
from weftline_engine.retrieval.batching import Share, Slots, Waiting, form


def op(
    id: str, *tokens: int, app: str = "a", arrival: float = 0.0, depth: int = 0, done: int = 0
) -> Waiting:
    return Waiting(id, Hints(application=app, arrival=arrival, depth=depth), tokens, done)


def test_deeper_steps_of_an_application_come_first() -> None:
    """The rest of the batch goes to the next depth, then to the next application."""
    later = op("z", 1, 1, app="b", arrival=5.0, depth=9)
    shallow, deep = op("x", 1, 1, depth=1), op("y", 1, 1, depth=2)
    assert form([later, shallow, deep], Slots(5, 100)) == [
        Share("y", 0, 2),
        Share("x", 0, 2),
        Share("z", 0, 1),
    ]


def test_priority_counts_as_ten_seconds_of_waiting() -> None:
    first = Waiting("p", Hints(application="p", arrival=9.0, priority=-1), (1,))
    second = Waiting("q", Hints(application="q", arrival=0.0), (1,))
    assert form([second, first], Slots(1, 10)) == [Share("p", 0, 1)]


def test_a_long_op_goes_on_where_it_stopped() -> None:
    assert form([op("x", 1, 1, 1, 1, done=2)], Slots(8, 100)) == [Share("x", 2, 4)]


def test_an_item_beyond_the_budget_makes_a_batch_of_its_own() -> None:
    assert form([op("x", 50, 1)], Slots(8, 10)) == [Share("x", 0, 1)]


ops = st.lists(
    st.builds(
        lambda tokens, app, arrival, depth: (tokens, app, arrival, depth),
        st.lists(st.integers(1, 40), max_size=6),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=6,
)


@given(ops, st.integers(1, 8), st.integers(1, 60))
def test_batches_end_every_op_within_their_budget(
    drawn: list[tuple[list[int], str, int, int]], most_items: int, most_tokens: int
) -> None:
    """Batch after batch computes each item exactly once, in the order of its op."""
    left = {
        str(at): op(str(at), *tokens, app=app, arrival=float(arrival), depth=depth)
        for at, (tokens, app, arrival, depth) in enumerate(drawn)
    }
    rounds = 0
    while any(one.done < len(one.tokens) for one in left.values()):
        shares = form(left.values(), Slots(most_items, most_tokens))
        assert shares, "an item waits, so a batch has one"
        items = sum(share.stop - share.start for share in shares)
        tokens = sum(sum(left[s.op].tokens[s.start : s.stop]) for s in shares)
        assert items <= most_items and (tokens <= most_tokens or items == 1)
        for share in shares:
            one = left[share.op]
            assert share.start == one.done < share.stop
            left[share.op] = Waiting(one.op, one.hints, one.tokens, share.stop)
        rounds += 1
    assert rounds <= sum(len(one.tokens) for one in left.values())
    assert form(left.values(), Slots(most_items, most_tokens)) == []
