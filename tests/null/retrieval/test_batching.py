"""The next batch of an items engine: who comes first, and what one batch may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Hints
from weftline_engine.services.retrieval.batching import Share, Slots, Waiting, form
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued


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


def test_applications_come_in_the_order_of_the_server_s_queue() -> None:
    """The earliest turn goes first."""

    def waits(app: str, turn: float) -> Waiting:
        return Waiting(app, Hints(application=app, turn=turn), (1,))

    late, early = waits("late", 6.0), waits("early", 5.0)
    assert form([late, early], Slots(1, 10)) == [Share("early", 0, 1)]


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99)),
        min_size=2,
        max_size=8,
    )
)
def test_the_embedder_and_the_server_agree_on_the_order(
    applications: list[tuple[int, int]],
) -> None:
    """One op of each application: batches of one come as the placement policy places."""
    hints = [
        Hints(application=str(at), turn=float(turn), arrival=float(at))
        for at, (turn, _) in enumerate(applications)
    ]
    waits = [float(one[1]) for one in applications]
    queue = [
        Queued(id=h.application, model="m", kind="embed", queued=w, tokens=1, hints=h)
        for h, w in zip(hints, waits, strict=True)
    ]
    engine = EngineLoad(name="e", model="m", kinds=frozenset({"embed"}))
    placed = [one.id for one in place(queue, [engine], "app", now=100.0)]
    left = {
        h.application: Waiting(h.application, h, (1,), queued=w)
        for h, w in zip(hints, waits, strict=True)
    }
    formed = []
    while left:
        [share] = form(left.values(), Slots(1, 1))
        formed.append(share.op)
        del left[share.op]
    assert formed == placed


def test_like_lengths_share_a_batch() -> None:
    """Two ops with long and short texts: the long ones go together, and little is padding."""
    both = [op("x", 100, 90, 5, 5), op("y", 95, 6)]
    assert form(both, Slots(3, 300)) == [Share("x", 0, 2), Share("y", 0, 1)]
    rest = [op("x", 100, 90, 5, 5, done=2), op("y", 95, 6, done=1)]
    assert form(rest, Slots(8, 300)) == [Share("y", 1, 2), Share("x", 2, 4)]
    assert form(both, Slots(8, 250)) == [Share("x", 0, 1), Share("y", 0, 1)], "padded: 2 x 100"


def test_teola_s_figure_7() -> None:
    """Parts of 512 tokens, 1,024 tokens a batch: the two deepest, A and H, go before B and G."""
    depths = {"B": 1, "G": 1, "A": 3, "H": 3}
    queue = [op(name, 512, depth=depth) for name, depth in depths.items()]
    first = form(queue, Slots(8, 1024))
    assert [share.op for share in first] == ["A", "H"]
    rest = [one for one in queue if one.op in "BG"]
    assert [share.op for share in form(rest, Slots(8, 1024))] == ["B", "G"]


def test_a_long_op_goes_on_where_it_stopped() -> None:
    """The next batch has only the items that are not computed yet."""
    assert form([op("x", 1, 1, 1, 1, done=2)], Slots(8, 100)) == [Share("x", 2, 4)]


def test_an_item_beyond_the_budget_makes_a_batch_of_its_own() -> None:
    """An item with more tokens than a batch may have is computed alone."""
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
