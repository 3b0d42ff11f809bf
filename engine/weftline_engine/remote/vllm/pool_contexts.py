"""The contexts whose KV blocks are in vLLM's pool: which are pinned, and which are evicted first.

vLLM evicts free blocks in the order in which they became free. Here a context that the server keeps
is pinned: its blocks do not become free. The blocks of a context that nobody will read again are
evicted first, when all blocks hold something. Blocks stay that another application had too, such as
a common system prompt, and those of a later context, such as the next turn of an agent.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weftline_engine.api import Retention

# Seconds. A context that will be read later than this counts as one that nobody will read.
LONG_S = 600.0
# Contexts that are remembered. The oldest is forgotten, and unpinned.
MOST_CONTEXTS = 4096
# Ended contexts that wait until all blocks hold something. Older ones are evicted in vLLM's order.
MOST_ENDED = 1024


class Block(Protocol):
    """The attributes of vLLM's blocks that are read here."""

    ref_cnt: int
    is_null: bool

    @property
    def block_hash(self) -> Any: ...


class VLLMBlocks(Protocol):
    """The methods of vLLM's block pool that are used here."""

    free_block_queue: Any

    def touch(self, blocks: Sequence[Any]) -> None: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...

    def get_num_free_blocks(self) -> int: ...


@dataclass(slots=True, eq=False)
class LeftContext:
    """The blocks of an op that has ended, in the order of the prompt, with the hash of each. It
    `is_left` until it is freed or forgotten."""

    application: str
    blocks: list[tuple[Any, Hashable]]
    pinned: list[Any] | None = None  # the blocks that are held; None if it is not pinned
    is_left: bool = True


class PrefixContexts:
    """The contexts in one pool. `copies` says that a KV connector copies its blocks to the host.
    Ended contexts go first once fewer than `spare` blocks hold nothing."""

    def __init__(self, pool: VLLMBlocks, *, copies: bool = False, spare: int = 512) -> None:
        self._pool = pool
        self._spare = spare
        self._copies = copies
        self._left: OrderedDict[str, LeftContext] = OrderedDict()
        self._wishes: dict[str, Retention] = {}  # of contexts whose op still runs
        # The owner of what a block holds, None for several applications. It stays when its contexts
        # are freed, until the block holds something else: `_named` has what each block held last.
        self._owners: dict[Hashable, str | None] = {}
        self._named: dict[int, Hashable] = {}
        self._holders: Counter[Hashable] = Counter()  # how many of the contexts have a block
        self._ended: dict[LeftContext, None] = {}  # those whose blocks are to go first

    @property
    def pinned(self) -> int:
        return sum(left.pinned is not None for left in self._left.values())

    def leave(
        self,
        context: str,
        application: str,
        blocks: Iterable[Any],
        common: Collection[Hashable] = (),
    ) -> None:
        """Note the `blocks` of an op that ends. Call it just before vLLM frees them. Those with the
        hashes in `common` are likely to be read by other applications."""
        self._forget(context)
        kept = [(one, one.block_hash) for one in blocks if not one.is_null and one.block_hash]
        self._left[context] = left = LeftContext(application, kept)
        for block, name in kept:
            self._name(block, name)
            self._holders[name] += 1
            owner = self._owners.setdefault(name, application)
            if owner != application or name in common:
                self._owners[name] = None
        wish = self._wishes.pop(context, Retention.EVICTABLE)
        if wish is Retention.KEEP:
            self._pin(left)
        while len(self._left) > MOST_CONTEXTS:
            self._forget(next(iter(self._left)))

    def retain(self, context: str, retention: Retention) -> None:
        """Pin a context, let it be evicted in vLLM's order, or evict it first.

        A context that is to be swapped goes first where a KV connector has copied it.
        """
        left = self._left.get(context)
        if left is None:
            self._wishes[context] = retention
            while len(self._wishes) > MOST_CONTEXTS:
                del self._wishes[next(iter(self._wishes))]
        elif retention is Retention.KEEP:
            self._pin(left)
        else:
            self._unpin(left)
            if retention is Retention.DROP or (retention is Retention.SWAP and self._copies):
                self._evict_first(left)

    def advise(self, context: str, pause_s: float) -> None:
        """Note that a context will be read again in `pause_s` seconds."""
        left = self._left.get(context)
        if left is not None and left.pinned is None and pause_s >= LONG_S:
            self._evict_first(left)

    def free(self, context: str, *, may_return: bool = False) -> None:
        """Note that nobody will read the context again, as far as the server knows. What may return
        is evicted in vLLM's order."""
        self._wishes.pop(context, None)
        left = self._left.get(context)
        if left is None:
            return
        self._unpin(left)
        if not may_return:
            self._evict_first(left)
        self._forget(context)

    def settle(self) -> None:
        """Let the blocks of ended contexts go first, if steps may soon need more than those that
        hold nothing. Call it before steps."""
        if not self._ended or self._has_spare():
            return
        free: dict[int, Any] = {}
        for left in self._ended:
            ends = (one for one, name in reversed(left.blocks) if self._ends(left, one, name))
            free |= {id(one): one for one in ends}
        self._ended.clear()
        for block in free.values():
            self._pool.free_block_queue.remove(block)
        self._pool.free_block_queue.prepend_n(list(free.values()))

    def _name(self, block: Any, name: Hashable) -> None:
        """Note what a block holds, and forget the owner of what it held."""
        before = self._named.get(id(block))  # vLLM makes its blocks once
        self._named[id(block)] = name
        if before is not None and before != name and before not in self._holders:
            self._owners.pop(before, None)

    def _has_spare(self) -> bool:
        """Whether enough blocks hold nothing. They are the first that vLLM takes."""
        block = self._pool.free_block_queue.fake_free_list_head.next_free_block
        for _ in range(self._spare):
            if block is None or block.block_hash:
                return False
            block = block.next_free_block
        return True

    def _ends(self, left: LeftContext, block: Any, name: Hashable) -> bool:
        """Whether a block is free, and neither another context nor another application has it."""
        is_there = block.ref_cnt == 0 and block.block_hash == name
        return is_there and bool(self._owners.get(name)) and self._holders[name] == left.is_left

    def give_way(self, blocks: int) -> None:
        """Unpin contexts, the oldest first, until as many blocks are free."""
        for left in self._left.values():
            if self._pool.get_num_free_blocks() >= blocks:
                return
            self._unpin(left)

    def unpin_all(self) -> None:
        for left in self._left.values():
            self._unpin(left)

    def _pin(self, left: LeftContext) -> None:
        if left.pinned is not None:
            return
        left.pinned = []
        for block, name in left.blocks:
            if block.block_hash != name:
                break  # this block was evicted, and the later blocks are of no use without it
            left.pinned.append(block)
        self._pool.touch(left.pinned)

    def _unpin(self, left: LeftContext) -> None:
        if left.pinned is not None:
            # The last blocks of a context are evicted first, because the first ones can be reused
            # without them.
            self._pool.free_blocks(reversed(left.pinned))
            left.pinned = None

    def _evict_first(self, left: LeftContext) -> None:
        """Let the free blocks go first that no other context has, when all hold something.

        An agent's next turn has all blocks of the turn before, whose context is then freed. Without
        this exception vLLM evicted the agent's conversation while its tool ran.
        """
        self._ended[left] = None
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self.settle()

    def _forget(self, context: str) -> None:
        left = self._left.pop(context, None)
        if left is None:
            return
        self._unpin(left)
        left.is_left = False
        for block, name in left.blocks:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
            if block.block_hash != name:
                self._owners.pop(name, None)
