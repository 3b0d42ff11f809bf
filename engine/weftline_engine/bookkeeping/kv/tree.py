"""The context tree: which KV blocks hold which tokens, so that equal prefixes share their blocks.

A node is one block: its tokens, and the nodes that continue them. Only a full node has children. A
node with fewer tokens than a block is the end of a context. A sequence that continues such a
context copies the node. A holder (a running sequence or a pinned context) holds every node of its
path, so a node has at least as many holders as each child. Nodes without a holder can be evicted
from the leaves upwards, in the order that `weftline_engine.bookkeeping.kv.eviction` decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weftline_engine.bookkeeping.kv.eviction import Leaf, Leaves
from weftline_engine.bookkeeping.kv.extents import Extent, Extents, Tokens

# A partial match compares at most this many children of a node that begin with the same token.
# Without a bound, one match could read every node of a tree with many different ends.
_MOST_COMPARED = 64
# From this many salts on, the roots of salts without any block are removed.
_MOST_ROOTS = 1024


class BlockPool:
    """The free KV blocks among 0 to count - 1. A block has one owner: a node of the tree, or a
    sequence. Blocks are shared through nodes, which count their holders."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._taken = bytearray(count)

    @property
    def free(self) -> int:
        return len(self._free)

    def reserve(self) -> int | None:
        """A free block, or None when there is none right now."""
        if not self._free:
            return None
        block = self._free.pop()
        self._taken[block] = 1
        return block

    def longest_free(self) -> Iterator[int]:
        """The free blocks, first those that `reserve` gives last."""
        return iter(self._free)

    def give(self, block: int) -> None:
        assert self._taken[block], f"block {block} is given back twice"
        self._taken[block] = 0
        self._free.append(block)


class Node(Leaf):
    """One block of the tree. `stored` is False for a root, which has no block, and after an
    eviction. `step` is the number of the step that computes the block's keys and values. The block
    is `whole` unless the keys of sliding layers were released (`windows`)."""

    __slots__ = (
        "block", "children", "ends", "holders", "parent", "step", "stored", "tokens", "whole",
    )  # fmt: skip

    def __init__(self, tokens: Tokens, block: int, parent: Node | None, step: int) -> None:
        super().__init__()
        self.stored = parent is not None
        self.tokens = tokens
        # The extents whose resident tokens end here, by the tokens of their next block.
        self.ends: dict[Tokens, dict[Extent, None]] = {}
        self.block = block
        self.parent = parent
        self.step = step
        self.holders = 0
        self.whole = True
        # By the first token, then by all tokens. A whole match needs no comparison, a partial one
        # few.
        self.children: dict[int, dict[Tokens, Node]] = {}

    @property
    def is_free(self) -> bool:
        """Whether it may be evicted now: it has a block, no holder and no children."""
        return not self.holders and not self.children and self.stored


@dataclass(frozen=True, slots=True)
class Match:
    """The nodes whose tokens all match, and a node after them whose first `extra` tokens match."""

    nodes: tuple[Node, ...]
    partial: Node | None = None
    extra: int = 0


class WholeBlocks:
    """Which blocks of a pool hold the keys of layers with a sliding window, too (`windows`).

    At most `most` of the blocks that are taken may. `backed` are those whose sliding layers have
    memory, also free ones, and `released` those that should have none.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.most = pool.count
        self.backed: set[int] = set()
        self.released: set[int] = set()
        self.taken = 0  # blocks, ever; some for nodes that were there, but not whole
        self._gaps = 0  # nodes that are not whole

    @property
    def count(self) -> int:
        """Blocks that are taken and whole."""
        return self._pool.count - self._pool.free - self._gaps

    def release(self, node: Node) -> None:
        """Note that the keys of the node's sliding layers are not kept any longer."""
        node.whole = False
        self._gaps += 1
        self.backed.discard(node.block)
        self.released.add(node.block)

    def exchange(self, node: Node, block: int) -> int:
        """Give a node that is not whole this block of the same tokens, which is. Return its old
        block, for the caller to give back."""
        old, node.block, node.whole = node.block, block, True
        self._gaps -= 1
        return old

    def reserved(self, block: int) -> None:
        """A block was taken, and will be written."""
        self.taken += 1
        self.backed.add(block)
        self.released.discard(block)

    def evicted(self, node: Node) -> None:
        self._gaps -= not node.whole


class ContextTree:
    """Finds, holds, adds and evicts nodes. Each salt has a root, so tenants share nothing."""

    def __init__(self, pool: BlockPool, block_size: int, *, predicts: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self.now = 0.0  # seconds of the current step; set by the scheduler, as is `step`
        self.step = 0  # the number of the current step
        self.evictable = 0  # nodes without a holder
        self.whole = WholeBlocks(pool)
        self._roots: dict[str, Node] = {}
        self._leaves: Leaves[Node] = Leaves(4 * pool.count, predicts=predicts)
        self._clock = itertools.count(1)
        self._anchors: dict[str, Node] = {}  # by context: the last node of the path it will read
        self.extents = Extents(block_size, self.find)

    @property
    def available(self) -> int:
        """Blocks that are free or can be evicted."""
        return self.pool.free + self.evictable

    def root(self, salt: str) -> Node:
        if salt not in self._roots and len(self._roots) >= _MOST_ROOTS:
            used = {key: root for key, root in self._roots.items() if root.children or root.ends}
            self._roots = used
        return self._roots.setdefault(salt, Node((), 0, None, 0))

    def match(self, node: Node, tokens: Sequence[int], step: int) -> Match:
        """The longest stored prefix of `tokens` below `node`.

        Whole nodes may be computed in the step number `step` itself. A node to copy from must be
        older, because blocks are copied before the step runs.
        """
        found: list[Node] = []
        size, done = self.block_size, 0
        while len(tokens) - done >= size:
            key = tuple(tokens[done : done + size])
            child = node.children.get(key[0], {}).get(key)
            if child is None:
                break
            found.append(child)
            node, done = child, done + size
        if done == len(tokens):
            return Match(tuple(found))
        rest = tuple(tokens[done : done + size])
        partial, extra = _closest(node, rest, step)
        return Match(tuple(found), partial, extra)

    def hold(self, node: Node) -> None:
        if node.holders == 0:
            self.evictable -= 1
        node.holders += 1

    def want(self, name: str, node: Node, at: float) -> None:
        """Note that context `name` will read the path to `node` at time `at`, in seconds."""
        self.unwant(name)
        self._anchors[name] = node
        node.wanted[name] = at
        self._offer(node)

    def unwant(self, name: str) -> None:
        """Forget when context `name` will be read."""
        if (node := self._anchors.pop(name, None)) is not None:
            del node.wanted[name]
            self._offer(node)

    def release(self, nodes: Sequence[Node]) -> None:
        """Release a path, or the end of one. The deepest node is released first, so that it is also
        evicted first."""
        for node in reversed(nodes):
            assert node.holders > 0, "a node is released twice"
            node.holders -= 1
            if node.holders == 0:
                self.evictable += 1
                node.used = next(self._clock)
                self._offer(node)

    def add(
        self, parent: Node, tokens: Tokens, block: int, step: int, reader: str = ""
    ) -> Node | None:
        """Add a block as a node that the caller holds, for the application `reader`. None if these
        tokens have a node."""
        siblings = parent.children.setdefault(tokens[0], {})
        if tokens in siblings:
            return None
        node = siblings[tokens] = Node(tokens, block, parent, step)
        node.holders = 1
        node.read, node.reader = self.now, reader
        if parent.ends:
            self.extents.entered(parent, node)
        return node

    def find(self, parent: Node, tokens: Tokens) -> Node | None:
        """A child of `parent` that begins with `tokens`."""
        siblings = parent.children.get(tokens[0], {})
        if tokens in siblings:
            return siblings[tokens]
        if len(tokens) < self.block_size:
            for node in itertools.islice(siblings.values(), _MOST_COMPARED):
                if node.tokens[: len(tokens)] == tokens:
                    return node
        return None

    def forget(self, node: Node) -> None:
        """Cut `node` off the tree, so that matches do not find it or the nodes below it. Their
        holders still hold them."""
        parent = node.parent
        _detach(node)
        if parent is not None:
            depth = sum(1 for _ in _path(parent))
            self.extents.cut(_below(node), parent, depth * self.block_size)
        self._offer(node)

    def evict(self) -> bool:
        """Evict a node without a holder, chosen by its predicted use. False if there is none."""
        node = self._leaves.evict(self.now)
        if node is None:
            return False
        parent = node.parent
        _detach(node)
        self.pool.give(node.block)
        node.stored = False
        self.evictable -= 1
        self.whole.evicted(node)
        if parent is not None:
            self.extents.evicted(node, parent)
        if parent is not None and parent.stored:
            for name in node.wanted:  # what is left of these paths ends one node earlier
                self._anchors[name] = parent
            parent.wanted |= node.wanted
            self._offer(parent)
        else:
            for name in node.wanted:
                del self._anchors[name]
        return True

    def reserve(self, beside: Node | None = None) -> int | None:
        """A block for the caller to own. Evicts a node if none is free, but not `beside`, of which
        the caller makes a copy. None if all are held. The block is whole: nodes are evicted until
        it may be.
        """
        if beside is not None:
            self.hold(beside)
        is_room = True
        while is_room and self.whole.count >= self.whole.most:
            is_room = self.evict()
        block = self.pool.reserve() if is_room else None
        if is_room and block is None and self.evict():
            block = self.pool.reserve()
        if beside is not None:
            self.release([beside])
        if block is not None:
            self.whole.reserved(block)
        return block

    def nodes(self) -> Iterator[Node]:
        """Every node that can be found, parents first."""
        for root in self._roots.values():
            yield from (node for node in _below(root) if node.stored)

    def _offer(self, node: Node) -> None:
        if node.is_free:
            self._leaves.add(node, self.now)


def _below(node: Node) -> Iterator[Node]:
    """`node` and all nodes below it, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        for siblings in node.children.values():
            stack.extend(siblings.values())


def _path(node: Node) -> Iterator[Node]:
    """The nodes from `node` up to the root, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def _closest(node: Node, tokens: Tokens, step: int) -> tuple[Node | None, int]:
    best: Node | None = None
    most = 0
    siblings = node.children.get(tokens[0], {}) if tokens else {}
    for child in itertools.islice(siblings.values(), _MOST_COMPARED):
        common = 0
        for ours, theirs in zip(tokens, child.tokens, strict=False):
            if ours != theirs:
                break
            common += 1
        if common > most and child.step < step:
            best, most = child, common
    return best, most


def _detach(node: Node) -> None:
    parent = node.parent
    if parent is None:
        return
    siblings = parent.children.get(node.tokens[0], {})
    if siblings.get(node.tokens) is node:
        del siblings[node.tokens]
        if not siblings:
            del parent.children[node.tokens[0]]
    node.parent = None
