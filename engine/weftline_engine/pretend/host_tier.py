"""Blocks of keys and values in host memory, as vLLM's connector keeps them.

Each block is copied out when it was computed, and copied back before a request that begins with it
starts. Copies out run beside the steps. A full memory drops the least recently used block, as vLLM
does by itself, or the block that will be read last (`HostOrder`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice

from weftline_engine.api import Op
from weftline_engine.bookkeeping.kv.read_order import ReadOrder
from weftline_engine.bookkeeping.kv.tree import ContextTree, Node

Key = int  # a hash of a block's tokens and of all tokens before them


class HostOrder(Enum):
    """Which block is dropped first: the least recently used, or the one that is read last."""

    LRU = "lru"
    NEXT_USE = "next use"


def keys(salt: str, tokens: Sequence[int], size: int) -> list[Key]:
    """The keys of the full blocks of a text."""
    found: list[Key] = []
    before = hash(salt)
    for at in range(0, len(tokens) - size + 1, size):
        before = hash((before, tuple(tokens[at : at + size])))
        found.append(before)
    return found


class HostTier:
    """Which blocks are in host memory, at most `blocks` of them. In the order LRU nothing is known
    of contexts."""

    def __init__(self, blocks: int, order: HostOrder) -> None:
        self._most = blocks
        self._knows = order is HostOrder.NEXT_USE
        self._order: ReadOrder[Key] = ReadOrder()

    def __len__(self) -> int:
        return len(self._order)

    def found(self, wanted: Sequence[Key], behind: int) -> int:
        """How many blocks in a row are held, from number `behind` on."""
        for count, key in enumerate(wanted[behind:]):
            if key not in self._order:
                return count
        return max(0, len(wanted) - behind)

    def use(self, read: Sequence[Key], now: float) -> None:
        """Note a use of a text's blocks. The last block of a text is dropped first."""
        self._order.use(read, now)

    def store(self, context: str, application: str, written: Sequence[Key], now: float) -> None:
        """Copy the blocks of a context out. Its own are dropped last, because the server has not
        said yet when they will be read."""
        for key in written:
            if key not in self._order:
                self._order.add(key, now)
        self._order.use(written, now)
        if self._knows:
            self._order.leave(context, application, written)
        too_many = len(self._order) - self._most
        if too_many > 0:
            own = frozenset(written)
            others = (key for key in self._order.first(now) if key not in own)
            for key in list(islice(chain(others, reversed(written)), too_many)):
                self._order.remove(key)

    def expect(self, context: str, at: float) -> None:
        """Note when a context will be read."""
        if self._knows:
            self._order.expect(context, at)

    def keep(self, context: str, now: float) -> None:
        """Keep a context whose room on the device others need."""
        if self._knows:
            self._order.keep(context, now)

    def drop(self, context: str) -> None:
        """Nobody will read the copy of a context."""
        if self._knows:
            self._order.drop(context)

    def free(self, context: str) -> None:
        """Nobody will read the context again."""
        if self._knows:
            self._order.free(context)


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The copy of a request's blocks from host memory, into `nodes` that it holds, and `blocks`
    that it owns. The copy ends at second `ends`."""

    op: Op
    nodes: tuple[Node, ...]
    texts: tuple[tuple[int, ...], ...]
    blocks: tuple[int, ...]
    ends: float


class Loader:
    """The requests that wait for their blocks, one copy after the other."""

    def __init__(self, tier: HostTier, tree: ContextTree, block_s: float) -> None:
        self._tier = tier
        self._tree = tree
        self._block_s = block_s
        self._waiting: list[Op] = []
        self._loads: list[HostLoad] = []
        self._free_at = 0.0  # the link
        self._arrived: list[Node] = []  # held until a plan has found them

    @property
    def next_end(self) -> float | None:
        """When the next copy ends; None without one."""
        return self._loads[0].ends if self._loads else None

    def arrive(self, op: Op) -> None:
        """A request has come."""
        self._waiting.append(op)

    def remove(self, name: str) -> Op | None:
        """Remove a request that waits. One whose copy runs is not waiting."""
        for number, one in enumerate(self._waiting):
            if one.id == name:
                return self._waiting.pop(number)
        return None

    def run(self, now: float, submit: Callable[[Op], None], busy: Callable[[], bool]) -> None:
        """Start copies, and submit the requests that need none or have theirs.

        A request without room waits, and with it all later ones. Where nothing else runs, it starts
        without its copy.
        """
        self._tree.release(self._arrived)
        self._arrived = []
        while self._loads and self._loads[0].ends <= now:
            self._arrive(self._loads.pop(0), submit)
        self._waiting.sort(key=lambda one: one.hints.turn)
        while self._waiting:
            op = self._waiting[0]
            load = self._load(op, now)
            if load is None and (busy() or self._loads):
                return
            self._waiting.pop(0)
            if load is None or not load.blocks:
                submit(op)
            else:
                self._free_at = load.ends
                self._loads.append(load)

    def _load(self, op: Op, now: float) -> HostLoad | None:
        """The copy of a request, perhaps of no block. None without room for its prompt."""
        tree, size = self._tree, self._tree.block_size
        tokens = op.tokens or ()
        nodes = tree.match(tree.root(op.salt), tokens[:-1], tree.step + 1).nodes
        wanted = keys(op.salt, tokens[:-1], size)
        self._tier.use(wanted, now)
        count = self._tier.found(wanted, len(nodes))
        if not count:
            return HostLoad(op, (), (), (), now)
        for node in nodes:
            tree.hold(node)
        if tree.available < len(tokens) // size + 1 - len(nodes):
            tree.release(nodes)
            return None
        blocks = tuple(block for _ in range(count) if (block := tree.reserve()) is not None)
        assert len(blocks) == count, "as many are available"
        begin = len(nodes)
        texts = tuple(
            tuple(tokens[at * size : (at + 1) * size]) for at in range(begin, begin + count)
        )
        ends = max(now, self._free_at) + count * self._block_s
        return HostLoad(op, nodes, texts, blocks, ends)

    def _arrive(self, load: HostLoad, submit: Callable[[Op], None]) -> None:
        """Put the copied blocks into the tree, as far as nobody has computed them meanwhile."""
        tree, held = self._tree, list(load.nodes)
        for text, block in zip(load.texts, load.blocks, strict=True):
            parent = held[-1] if held else tree.root(load.op.salt)
            node = tree.add(parent, text, block, tree.step, load.op.hints.application)
            if node is None:
                tree.pool.give(block)
                node = tree.find(parent, text)
                assert node is not None, "the tree refused a second node for these tokens"
                tree.hold(node)
            held.append(node)
        self._arrived += held
        submit(load.op)
