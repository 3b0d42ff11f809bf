"""The context tree: which KV blocks hold which tokens, so that equal prefixes meet in one node.

A node is one block: its tokens, and the nodes that continue them. A full node has children; one
with fewer tokens than a block is the end of some context, and is copied by whoever continues it.
A holder (a running sequence, a pinned context) holds every node of its path, so a node's count is
at least its children's, and the nodes that nobody holds can go from the leaves upwards. In which
order is `weftline_engine.bookkeeping.kv.eviction`'s to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weftline_engine.bookkeeping.kv.eviction import Leaf, Leaves

Tokens = tuple[int, ...]

# Continuations of one node that begin with the same token and are compared for a partial match.
# A tree fed with random tails could otherwise make one match read all of it.
_MOST_COMPARED = 64
# Tenants whose roots are kept before the empty ones are looked for.
_MOST_ROOTS = 1024


class BlockPool:
    """Which KV blocks, 0 .. count - 1, are free. A block has one owner, a node of the tree or a
    sequence. Sharing is the tree's: its nodes count holders."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._taken = bytearray(count)

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A free block, or None when there is none right now."""
        if not self._free:
            return None
        block = self._free.pop()
        self._taken[block] = 1
        return block

    def give(self, block: int) -> None:
        assert self._taken[block], f"block {block} is given back twice"
        self._taken[block] = 0
        self._free.append(block)


class Node(Leaf):
    """One block of the tree. `holders` counts who needs it; `step` is when its KV is computed."""

    __slots__ = ("block", "children", "holders", "parent", "step", "tokens")

    def __init__(self, tokens: Tokens, block: int, parent: Node | None, step: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.block = block
        self.parent = parent
        self.step = step
        self.holders = 0
        # By first token, then by all of them: a partial match compares few, a full one none.
        self.children: dict[int, dict[Tokens, Node]] = {}

    @property
    def is_free(self) -> bool:
        """Whether it may go now: nobody holds it or what continues it, and it is still there."""
        return not self.holders and not self.children and self.block >= 0


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that hold leading tokens whole, and one that holds `extra` more at its beginning."""

    nodes: tuple[Node, ...]
    partial: Node | None = None
    extra: int = 0


class ContextTree:
    """Finds, holds, adds and evicts nodes; a root for each salt, which parts the tenants."""

    def __init__(self, pool: BlockPool, block_size: int, *, predicts: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self.now = 0.0  # seconds; set by the scheduler with every step
        self.evictable = 0  # nodes without a holder
        self._roots: dict[str, Node] = {}
        self._leaves: Leaves[Node] = Leaves(4 * pool.count, predicts=predicts)
        self._clock = itertools.count(1)
        self._anchors: dict[str, Node] = {}  # where what is wanted of a context ends, by its id

    @property
    def available(self) -> int:
        """Blocks that can be had without taking any from a holder."""
        return self.pool.free + self.evictable

    def root(self, salt: str) -> Node:
        if salt not in self._roots and len(self._roots) >= _MOST_ROOTS:
            self._roots = {key: root for key, root in self._roots.items() if root.children}
        return self._roots.setdefault(salt, Node((), -1, None, -1))

    def match(self, node: Node, tokens: Sequence[int], step: int) -> Match:
        """The longest stored prefix of `tokens` below `node`.

        Whole nodes may be computed in `step` itself; one to copy from must be older, for its rows
        are copied before the step runs.
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

    def use(self, node: Node) -> None:
        """Hold a node that another has computed: what comes back once may come back again."""
        self.hold(node)
        node.read_at(self.now)

    def want(self, name: str, node: Node, at: float) -> None:
        """The path to `node` will be read at second `at`, on behalf of `name`."""
        self.unwant(name)
        self._anchors[name] = node
        node.wanted[name] = at
        self._offer(node)

    def unwant(self, name: str) -> None:
        """Nobody waits for what `name` wanted any more."""
        if (node := self._anchors.pop(name, None)) is not None:
            del node.wanted[name]
            self._offer(node)

    def release(self, nodes: Sequence[Node]) -> None:
        """Let go of a path, or the end of one; the deepest goes first, so it is evicted first."""
        for node in reversed(nodes):
            assert node.holders > 0, "a node is released twice"
            node.holders -= 1
            if node.holders == 0:
                self.evictable += 1
                node.used = next(self._clock)
                self._offer(node)

    def add(self, parent: Node, tokens: Tokens, block: int, step: int) -> Node | None:
        """Enter a block, held by the caller. None where these tokens have a node already."""
        siblings = parent.children.setdefault(tokens[0], {})
        if tokens in siblings:
            return None
        node = siblings[tokens] = Node(tokens, block, parent, step)
        node.holders = 1
        node.read = self.now
        return node

    def find(self, parent: Node, tokens: Tokens) -> Node | None:
        """A child of `parent` that holds `tokens`, and perhaps more."""
        siblings = parent.children.get(tokens[0], {})
        if tokens in siblings:
            return siblings[tokens]
        if len(tokens) < self.block_size:
            for node in itertools.islice(siblings.values(), _MOST_COMPARED):
                if node.tokens[: len(tokens)] == tokens:
                    return node
        return None

    def forget(self, node: Node) -> None:
        """Cut `node` off, so that nobody finds it or what is below; holders keep what they hold."""
        _detach(node)
        self._offer(node)

    def evict(self) -> bool:
        """Free the block that will be read last of those nobody holds; False when there is none."""
        node = self._leaves.take(self.now)
        if node is None:
            return False
        parent = node.parent
        _detach(node)
        self.pool.give(node.block)
        node.block = -1
        self.evictable -= 1
        if parent is not None and parent.block >= 0:
            for name in node.wanted:  # what is left of these paths ends one node earlier
                self._anchors[name] = parent
            parent.wanted |= node.wanted
            self._offer(parent)
        else:
            for name in node.wanted:
                del self._anchors[name]
        return True

    def take(self) -> int | None:
        """A block for the caller to own, evicting if need be; None when all are held."""
        block = self.pool.take()
        if block is None and self.evict():
            block = self.pool.take()
        return block

    def take_beside(self, node: Node) -> int | None:
        """A block for a copy of `node`, which is not evicted for it."""
        self.hold(node)
        block = self.take()
        self.release([node])
        return block

    def nodes(self) -> Iterator[Node]:
        """Every node that can be found, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.block >= 0:
                yield node
            for siblings in node.children.values():
                stack.extend(siblings.values())

    def _offer(self, node: Node) -> None:
        if node.is_free:
            self._leaves.add(node, self.now)


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
