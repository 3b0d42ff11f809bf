"""Which blocks leave host memory first: by what is known of their contexts, and else LRU."""

from __future__ import annotations

from weftline_engine.bookkeeping.kv import read_order
from weftline_engine.bookkeeping.kv.read_order import ReadOrder


def written(**contexts: str) -> ReadOrder[str]:
    """Contexts that ended one second after another, of one application each. A block is a letter;
    one that is there already is only used."""
    order = ReadOrder[str]()
    for now, (name, blocks) in enumerate(contexts.items()):
        for block in blocks:
            if block not in order:
                order.add(block, float(now))
        order.use(blocks, float(now))
        order.leave(name, name.rstrip("0123456789"), blocks)
    return order


def first(order: ReadOrder[str], now: float) -> str:
    return "".join(order.first(now))


def test_where_nothing_is_known_the_order_is_lru() -> None:
    """The end of a text goes before its beginning. A use makes its blocks the last."""
    order = written(a="abc", b="de")
    assert first(order, 9.0) == "cbaed"
    order.use("ab", 5.0)
    assert first(order, 9.0) == "cedba"


def test_ended_contexts_go_first_and_then_the_furthest_read() -> None:
    """Of three, one is read in 60 s, one in 5 s, and the youngest has ended."""
    order = written(soon="ab", late="cd", ended="ef")
    order.expect("soon", 7.0)
    order.expect("late", 62.0)
    order.free("ended")
    assert first(order, 2.0) == "fedcba"
    assert first(order, 90.0) == "febadc", "a read that is overdue counts like one to come"


def test_what_was_used_long_ago_is_expected_in_as_long() -> None:
    """Nothing is known of a context that was used 20 s ago. It goes before one that is read in 10
    s, and after one that is read in 30 s."""
    order = written(unknown="a", ten="b", thirty="c")
    order.expect("ten", 30.0)
    order.expect("thirty", 50.0)
    assert first(order, 20.0) == "cab"


def test_a_block_of_several_contexts_is_read_with_the_first_of_them() -> None:
    """Two turns of one agent begin alike. The first one's end does not end what the second has."""
    order = written(turn1="ab", turn2="abc", other="x")
    for name, at in (("turn1", 100.0), ("turn2", 10.0), ("other", 50.0)):
        order.expect(name, at)
    assert first(order, 2.0) == "xcba"
    order.free("turn1")
    assert first(order, 2.0) == "xcba"
    order.free("turn2")
    assert first(order, 2.0) == "cbax"


def test_a_system_prompt_of_several_applications_stays_when_they_have_ended() -> None:
    """It counts as last used then. A new use takes an ended block out of the first places, too."""
    order = written(a="sa", b="sb", c="c")
    order.free("a")
    order.free("b")
    assert first(order, 3.0) == "absc"
    order.use("a", 3.0)
    assert first(order, 3.0) == "bsca"


def test_what_is_said_before_an_op_has_ended_counts_then() -> None:
    """The server's word may overtake the end of the request in vLLM."""
    order = ReadOrder[str]()
    order.expect("late", 99.0)
    order.free("ended")
    order.expect("soon", 1.0)
    for name in ("late", "soon", "ended"):
        order.add(name[0], 0.0)
        order.leave(name, name, name[0])
    assert first(order, 0.0) == "els"
    order.drop("soon")
    assert first(order, 0.0) == "sel"
    order.keep("next", 5.0)
    order.expect("next", 50.0)
    order.add("n", 0.0)
    order.leave("next", "next", "n")
    assert first(order, 0.0) == "seln", "kept, though it is read later than another"


def test_a_block_that_has_gone_and_come_again_is_another_one() -> None:
    """Its new context is unknown, and the end of the old one does not concern it."""
    order = written(a="ab", b="c")
    order.expect("a", 50.0)
    order.remove("b")
    order.add("b", 2.0)
    order.free("a")
    assert first(order, 3.0) == "acb"


def test_a_bound_on_contexts() -> None:
    """Of the oldest it is forgotten when it will be read; its blocks stay, by their last use."""
    order = ReadOrder[int]()
    for number in range(read_order.MOST_CONTEXTS + 1):
        order.add(number, 0.0)
        order.leave(str(number), "", [number])
        order.expect(str(number), 10.0)
    assert list(order.first(0.0))[-1] == 0


def test_agents_in_turns_find_what_an_optimum_finds() -> None:
    """Three agents come in turn, and two fit. LRU finds nothing. By next use every second read is
    found, as by Belady's optimum."""
    for knows, found in ((False, 0), (True, 14)):
        order, hits = ReadOrder[str](), 0
        for now in range(30):
            name = "abc"[now % 3]
            hits += name in order
            if name not in order:
                order.add(name, float(now))
            order.use(name, float(now))
            if knows:
                order.leave(name, name, name)
                order.expect(name, now + 3.0)
            while len(order) > 2:
                order.remove(next(one for one in order.first(float(now)) if one != name))
        assert hits == found


def test_what_the_server_keeps_goes_last() -> None:
    """A context that the device may still have goes before one that it does not have any more,
    whenever they are read. What both have stays with the kept one."""
    order = written(plain="sa", kept1="sbc", kept2="d", unknown="e")
    for name, at in (("plain", 4.0), ("kept1", 30.0), ("kept2", 90.0)):
        order.expect(name, at)
    for name in ("kept1", "kept2"):
        order.keep(name, 3.0)
    assert first(order, 3.0) == "aedcbs"
    order.drop("kept1")
    assert first(order, 3.0) == "cbased"
    order.free("kept2")
    assert first(order, 3.0)[0] == "d"
