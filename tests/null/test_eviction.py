"""The KV cache evicts the block that will be used last, not the one unused for longest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.bookkeeping.kv.eviction import LAPSED_S
from weftline_engine.bookkeeping.kv.tree import BlockPool, ContextTree, Node

SIZE = 2


def tree(blocks: int = 6, *, predicts: bool = True) -> ContextTree:
    return ContextTree(BlockPool(blocks), SIZE, predicts=predicts)


def fill(made: ContextTree, *words: str) -> dict[str, list[Node]]:
    """Compute each word, two letters a block, and release it. Return the path of each."""
    paths = {}
    for word in words:
        node, path = made.root(""), []
        for at in range(0, len(word), SIZE):
            tokens = tuple(map(ord, word[at : at + SIZE]))
            found = made.find(node, tokens)
            if found is None:
                block = made.reserve()
                assert block is not None
                found = made.add(node, tokens, block, 0)
                assert found is not None
            else:
                made.hold(found)
                found.read_at(made.now)
            path.append(found)
            node = found
        made.release(path)
        paths[word] = path
    return paths


def there(made: ContextTree) -> set[str]:
    """Return the words that the cache holds as a whole."""
    found = set()
    for node in made.nodes():
        word, at = "", node
        while at is not None and at.stored:
            word, at = "".join(map(chr, at.tokens)) + word, at.parent
        if not node.children:
            found.add(word)
    return found


def evict(made: ContextTree, count: int, now: float) -> set[str]:
    made.now = now
    for _ in range(count):
        assert made.evict()
    return there(made)


def test_only_the_uses_of_others_are_expected_again() -> None:
    """What one application reads over and over is not expected to be read after its end: it is
    evicted before what two applications have read, though that was used longer ago.
    """
    made = tree()
    nodes = []
    for at, (letters, readers) in enumerate((("cc", "xxyxx"), ("aa", "xxxxx"))):
        block = made.reserve()
        assert block is not None
        made.now = float(at)
        node = made.add(made.root(""), tuple(map(ord, letters)), block, 0, readers[0])
        assert node is not None
        for later, reader in enumerate(readers[1:], start=1):
            node.read_at(at + float(later), reader)
        made.release([node])
        nodes.append(node)
    assert [node.gap for node in nodes] == [1.0, None]
    assert evict(made, 1, 6.0) == {"cc"}


def test_without_an_expected_use_the_least_recently_used_is_evicted() -> None:
    """Of one context the end goes first, so that its prefix stays useful."""
    made = tree()
    fill(made, "aaAA", "bb", "cc")
    assert evict(made, 1, 1.0) == {"aa", "bb", "cc"}
    assert evict(made, 1, 1.0) == {"bb", "cc"}


def test_the_context_expected_last_is_evicted_first() -> None:
    """Three sessions are expected in 9, 1 and 5 seconds. A context without an expected use goes
    first.
    """
    made = tree()
    paths = fill(made, "aa", "bb", "cc", "dd")
    for word, at in (("aa", 9.0), ("bb", 1.0), ("cc", 5.0)):
        made.want(word, paths[word][-1], at)
    left = [evict(made, 1, 0.0) for _ in range(4)]
    assert left == [{"aa", "bb", "cc"}, {"bb", "cc"}, {"bb"}, set()]


def test_what_does_not_come_back_gives_way_to_what_is_new() -> None:
    """A session that tells no end was expected at second 1. While it may still come, others that
    come once go first. Two minutes later it is older than they are."""
    for begin, left in ((10.0, {"aa", "cc", "dd"}), (1.0 + LAPSED_S, {"bb", "cc", "dd"})):
        made = tree(3)
        made.want("gone", fill(made, "aa")["aa"][-1], 1.0)
        for second, word in enumerate(("bb", "cc", "dd")):
            made.now = begin + second
            fill(made, word)
        assert there(made) == left


def test_without_predictions_the_order_is_least_recently_used() -> None:
    """The same four words with predictions switched off."""
    made = tree(predicts=False)
    paths = fill(made, "aa", "bb", "cc", "dd")
    for word, at in (("aa", 9.0), ("bb", 1.0), ("cc", 5.0)):
        made.want(word, paths[word][-1], at)
    made.unwant("aa")  # The prediction changes; the time of the last use does not.
    left = [evict(made, 1, 0.0) for _ in range(4)]
    assert left == [{"bb", "cc", "dd"}, {"cc", "dd"}, {"dd"}, set()]


def test_a_missed_prediction_counts_as_more_distant() -> None:
    """At second 20, a return that was expected at 2 is less likely than one expected at 30."""
    made = tree()
    paths = fill(made, "aa", "bb")
    made.want("gone", paths["aa"][-1], 2.0)
    made.want("late", paths["bb"][-1], 30.0)
    assert evict(made, 1, 20.0) == {"bb"}


def test_the_rest_of_a_partly_evicted_context_stays_expected() -> None:
    """The end of a context is evicted. Its prefix stays expected until the session stops expecting
    it.
    """
    made = tree()
    paths = fill(made, "aaAA", "bb")
    made.want("x", paths["aaAA"][-1], 9.0)
    made.want("y", paths["bb"][-1], 1.0)
    assert evict(made, 1, 0.0) == {"aa", "bb"}
    made.unwant("y")
    assert evict(made, 1, 0.0) == {"aa"}
    made.unwant("x")
    assert evict(made, 1, 0.0) == set()


def test_a_prefix_that_many_ask_for_outlives_their_ends() -> None:
    """A common prefix is read every second. It is kept although no prediction names it and
    everything else was used after it.
    """
    made = tree(blocks=8)
    for second, word in enumerate(("ppaa", "ppbb", "ppcc")):
        made.now = float(second)
        fill(made, word)
    fill(made, "xx", "yy")
    assert evict(made, 5, 2.5) == {"pp"}


def test_a_held_node_is_never_evicted() -> None:
    """Of two paths one is held: the other goes, and then there is nothing left to evict."""
    made = tree()
    paths = fill(made, "aa", "bb")
    made.hold(paths["aa"][0])
    assert evict(made, 1, 0.0) == {"aa"}
    assert not made.evict()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["aa", "aaAA", "aaBB", "bb", "bbCC"]),
            st.sampled_from(["fill", "want", "unwant", "evict"]),
            st.integers(0, 20),
        ),
        max_size=60,
    )
)
def test_every_block_is_free_or_in_the_tree(steps: list[tuple[str, str, int]]) -> None:
    """Words come and go on a pool of four blocks. The books stay right and the heaps stay small."""
    made = tree(blocks=4)
    for second, (word, verb, at) in enumerate(steps):
        made.now = float(second)
        path = fill(made, word)[word]
        match verb:
            case "want":
                made.want(word, path[-1], float(at))
            case "unwant":
                made.unwant(word)
            case "evict":
                made.evict()
        nodes = list(made.nodes())
        assert made.pool.free + len(nodes) == 4
        assert made.evictable == len(nodes)
        assert {name for node in nodes for name in node.wanted} == set(made._anchors)
    while made.evict():
        pass
    assert made.pool.free == 4 and not made._anchors
