"""Counts how many tokens of each context the tree holds, while nodes are added and evicted.

Each extent is listed at the tree node in which its resident tokens end. So when a node is added or
evicted, the extents that change are found there, without a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from weftline_engine.bookkeeping.kv.tree import Node

Tokens: TypeAlias = tuple[int, ...]

# The most released extents that may end in one node after they lost tokens. All of them have the
# same prefix. Without this bound, each evicted block of an old application's system prompt would be
# reported for up to 4,096 contexts.
MOST_PER_NODE = 64


@dataclass(eq=False, slots=True)
class Extent:
    """The tokens of a context. The first `computed` of them were in the KV cache once. The first
    `resident` are still there, and end in the node `end`. `released`: the context was freed."""

    tokens: Tokens = ()
    computed: int = 0
    resident: int = field(default=0, init=False)
    end: Node | None = field(default=None, init=False)
    released: bool = field(default=False, init=False)


class Extents:
    """Keeps `Extent.resident` true. `find` returns a child of a node that begins with some tokens.

    A block counts only if it holds all tokens of the extent at its place. So the count is a
    multiple of the block size, or all that was computed.
    """

    def __init__(self, block_size: int, find: Callable[[Node, Tokens], Node | None]) -> None:
        self._size = block_size
        self._find = find
        self._changed: dict[Extent, None] = {}

    def follow(self, extent: Extent, end: Node, resident: int) -> None:
        """Follow this extent from now on. Its `resident` tokens end in node `end`."""
        self._take_off(extent)
        self._place(extent, end, resident)

    def stop(self, extent: Extent) -> None:
        """Stop following this extent. It counts as having no tokens left."""
        if extent.end is not None:
            self._take_off(extent)
            extent.end, extent.resident = None, 0
            self.note(extent)

    def note(self, extent: Extent) -> None:
        """Note a change of this extent, which must be reported."""
        self._changed[extent] = None

    def changes(self) -> Iterator[Extent]:
        """The extents that changed since the last call, in the order of their first change."""
        changed, self._changed = self._changed, {}
        return iter(changed)

    def entered(self, parent: Node, node: Node) -> None:
        """Lengthen the extents that lack the tokens of `node`, a new child of `parent`."""
        for count in range(1, len(node.tokens) + 1):
            for extent in parent.ends.pop(node.tokens[:count], ()):
                self._place(extent, node, extent.resident + count)

    def evicted(self, node: Node, parent: Node) -> None:
        """Shorten the extents that ended in `node`, a leaf below `parent` that was evicted."""
        if not node.ends:
            return
        for extent in _all(node):
            self._fall_back(extent, parent, (extent.resident - 1) // self._size * self._size)
        node.ends = {}
        released = [extent for extent in _all(parent) if extent.released]
        for extent in released[:-MOST_PER_NODE]:
            self.stop(extent)

    def cut(self, nodes: Iterable[Node], parent: Node, resident: int) -> None:
        """Shorten the extents that ended in these nodes, which were cut off below `parent`. The
        path to `parent` has `resident` tokens."""
        for node in nodes:
            for extent in _all(node):
                self._fall_back(extent, parent, resident)
            node.ends = {}

    def _fall_back(self, extent: Extent, parent: Node, resident: int) -> None:
        """Shorten the extent to `resident` tokens, which end in `parent`. If its last tokens are
        less than a block, another child of `parent` may still hold them."""
        extent.resident = resident
        lacks = self._lacks(extent)
        other = self._find(parent, lacks) if len(lacks) < self._size else None
        if other is None:
            self._place(extent, parent, resident)
        else:
            self._place(extent, other, resident + len(lacks))

    def _place(self, extent: Extent, end: Node, resident: int) -> None:
        extent.end, extent.resident = end, resident
        end.ends.setdefault(self._lacks(extent), {})[extent] = None
        self.note(extent)

    def _take_off(self, extent: Extent) -> None:
        if extent.end is None:
            return
        lacks = self._lacks(extent)
        group = extent.end.ends[lacks]
        del group[extent]
        if not group:
            del extent.end.ends[lacks]

    def _lacks(self, extent: Extent) -> Tokens:
        """The tokens of the extent's first block that is not resident; empty if all are."""
        stop = min(extent.resident + self._size, extent.computed)
        return extent.tokens[extent.resident : stop]


def _all(node: Node) -> list[Extent]:
    return [extent for group in node.ends.values() for extent in group]
