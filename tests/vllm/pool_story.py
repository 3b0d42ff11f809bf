"""A story of plans.py: contexts are pinned, freed and evicted in vLLM's own block pool."""

from __future__ import annotations

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from weftline_engine.api import Retention
from weftline_engine.remote.vllm.pool_contexts import PrefixContexts

BLOCKS = 9  # of which vLLM keeps one for itself


def compute(pool: BlockPool, contexts: PrefixContexts, name: str, app: str, *texts: bytes) -> None:
    """A request computes a block for each text, leaves its context, and ends."""
    blocks = pool.get_new_blocks(len(texts))
    for block, text in zip(blocks, texts, strict=True):
        pool._insert_block_hash(make_block_hash_with_group_id(text, 0), block, num_tokens=16)
    contexts.leave(name, app, blocks)
    pool.free_blocks(reversed(blocks))


def cached(pool: BlockPool, *texts: bytes) -> list[bool]:
    """Whether the pool still has the block of each text."""
    return [pool.get_cached_block(text, [0]) is not None for text in texts]


def take(pool: BlockPool, count: int) -> None:
    """A request needs so many blocks, and ends without leaving anything."""
    pool.free_blocks(pool.get_new_blocks(count))


def the_dead_go_first() -> None:
    """The youngest context is freed: it is evicted before the oldest, its end first."""
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
    contexts = PrefixContexts(pool)
    compute(pool, contexts, "old", "a", b"1", b"2", b"3", b"4")
    compute(pool, contexts, "young", "b", b"5", b"6", b"7", b"8")
    contexts.free("young")
    take(pool, 2)
    assert cached(pool, b"1", b"4", b"5", b"6", b"7", b"8") == [True] * 4 + [False] * 2


def what_two_applications_have_stays() -> None:
    """A freed context begins with a block that another application had too."""
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
    contexts = PrefixContexts(pool)
    compute(pool, contexts, "first", "a", b"system", b"1")
    (shared,) = pool.get_cached_block(b"system", [0]) or []
    pool.touch([shared])
    contexts.leave("second", "b", [shared])
    pool.free_blocks([shared])
    contexts.free("first")
    contexts.free("second")
    take(pool, 7)
    assert cached(pool, b"system", b"1") == [True, False]


def what_the_next_turn_continues_stays() -> None:
    """An agent's second turn begins with all of the first, whose context is then freed."""
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
    contexts = PrefixContexts(pool)
    compute(pool, contexts, "turn 1", "a", b"1", b"2")
    turn = [block for text in (b"1", b"2") for block in pool.get_cached_block(text, [0]) or []]
    pool.touch(turn)
    compute(pool, contexts, "answer", "a", b"3")
    contexts.leave("turn 2", "a", turn)
    pool.free_blocks(reversed(turn))
    contexts.free("turn 1")
    take(pool, 5)  # as many blocks as hold nothing
    assert cached(pool, b"1", b"2", b"3") == [True] * 3
    contexts.free("turn 2")
    take(pool, 2)
    assert cached(pool, b"1", b"2", b"3") == [False, False, True]


def what_is_pinned_stays() -> None:
    """A pinned context is not free. Pins give way to what must run, the oldest first."""
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
    contexts = PrefixContexts(pool)
    contexts.retain("early", Retention.KEEP)  # before its op has ended
    compute(pool, contexts, "early", "a", b"1", b"2")
    compute(pool, contexts, "late", "a", b"3", b"4")
    contexts.retain("late", Retention.KEEP)
    assert contexts.pinned == 2 and pool.get_num_free_blocks() == 4
    take(pool, 4)
    assert cached(pool, b"1", b"2", b"3", b"4") == [True] * 4
    contexts.give_way(6)
    assert contexts.pinned == 1 and pool.get_num_free_blocks() == 6
    take(pool, 6)
    assert cached(pool, b"1", b"2", b"3", b"4") == [False, False, True, True]
    contexts.unpin_all()
    assert pool.get_num_free_blocks() == 8


def a_long_pause_is_evicted_first() -> None:
    """A context that is read in an hour goes before an older one."""
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
    contexts = PrefixContexts(pool)
    compute(pool, contexts, "old", "a", b"1", b"2")
    compute(pool, contexts, "paused", "b", b"3", b"4")
    take(pool, 4)
    contexts.advise("old", 1.0)
    contexts.advise("paused", 3600.0)
    take(pool, 2)
    assert cached(pool, b"1", b"2", b"3", b"4") == [True, True, False, False]


def stories_of_a_pool() -> list[str]:
    """Each asserts what it says. The names of those that were told."""
    stories = (
        the_dead_go_first,
        what_two_applications_have_stays,
        what_the_next_turn_continues_stays,
        what_is_pinned_stays,
        a_long_pause_is_evicted_first,
    )
    for story in stories:
        story()
    return [story.__name__ for story in stories]
