"""The context tree: which KV blocks hold which tokens, so that equal prefixes meet in one node.

A node is one block: its tokens, and the nodes that continue them. A full node has children; one
with fewer tokens than a block is the end of some context, and is copied by whoever continues it.
A holder (a running sequence, a pinned context) holds every node of its path, so a node's count is
at least its children's, and the nodes that nobody holds can go from the leaves upwards.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weftline_engine.embedded.pool import BlockPool

Tokens = tuple[int, ...]

# Continuations of one node that begin with the same token and are compared for a partial match.
# A tree fed with random tails could otherwise make one match read all of it.
_MOST_COMPARED = 64
# Tenants whose roots are kept before the empty ones are looked for.
_MOST_ROOTS = 1024


class Node:
    """One block of the tree. `holders` counts who needs it; `step` is when its KV is computed."""

    __slots__ = ("block", "children", "holders", "parent", "step", "tokens", "used")

    def __init__(self, tokens: Tokens, block: int, parent: Node | None, step: int) -> None:
        self.tokens = tokens
        self.block = block
        self.parent = parent
        self.step = step
        self.holders = 0
        self.used = 0
        # By first token, then by all of them: a partial match compares few, a full one none.
        self.children: dict[int, dict[Tokens, Node]] = {}


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that hold leading tokens whole, and one that holds `extra` more at its beginning."""

    nodes: tuple[Node, ...]
    partial: Node | None = None
    extra: int = 0


class ContextTree:
    """Finds, holds, adds and evicts nodes; a root for each salt, which parts the tenants."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.evictable = 0  # nodes without a holder
        self._roots: dict[str, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []  # candidates by last use; may be outdated
        self._clock = itertools.count(1)

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
        node.used = next(self._clock)

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
        node.used = next(self._clock)
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
        if node.holders == 0 and not node.children:
            self._offer(node)

    def evict(self) -> bool:
        """Free the least recently used block that nobody holds; False when there is none."""
        while self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if node.holders or node.children or node.used != used or node.block < 0:
                continue
            parent = node.parent
            _detach(node)
            self.pool.give(node.block)
            node.block = -1
            self.evictable -= 1
            if parent is not None and parent.block >= 0 and parent.holders == 0:
                self._offer(parent)
            return True
        return False

    def take(self) -> int | None:
        """A block for the caller to own, evicting if need be; None when all are held."""
        block = self.pool.take()
        if block is None and self.evict():
            block = self.pool.take()
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
        if not node.children:
            heapq.heappush(self._leaves, (node.used, id(node), node))


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
