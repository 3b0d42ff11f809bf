"""Which blocks hold the keys of layers with a sliding window, where a model also has full layers.

All layers number their blocks alike. A block is `whole` while its memory holds the keys of the
sliding layers, too. No row of a later token reads these behind its window, so that memory can be
given back. But a prefix is shared: another sequence may branch off anywhere in it, and reads the
window before its branch. So the windows before the ends of contexts and before branches stay, and
those in the middle of a path are released once the memory is needed. A sequence that branches off
there computes the prompt again from the last place whose window is whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weftline_engine.bookkeeping.kv.tree import ContextTree, Match, Node

# A search for windows that can be released looks at every node. Another one follows when the blocks
# that were taken since are this share of those that may be whole.
_SEARCH_SHARE = 16


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """`behind` blocks hold all tokens that a row's window has before the block of the row. At most
    `most` blocks are whole, `step` of them because a step writes to them."""

    behind: int
    most: int
    step: int

    @property
    def kept(self) -> int:
        """The blocks that may be whole when a step begins."""
        return self.most - self.step - self.most // _SEARCH_SHARE

    def needs(self, blocks: int) -> int:
        """How many of a sequence's blocks must be whole. Its last token may be taken back, so its
        window may reach a block further."""
        return min(blocks, self.behind + 2)

    def check(self) -> None:
        """Raise ValueError if a sequence would not fit even alone."""
        if self.kept < 2 * (self.behind + 2):
            raise ValueError(
                f"the KV pool has {self.most} blocks for sliding windows, and one sequence needs "
                f"{2 * (self.behind + 2) + self.step}; give it more tokens"
            )


class Windows:
    """Releases windows of the tree, and says where a sequence may branch off."""

    def __init__(
        self,
        config: WindowConfig,
        tree: ContextTree,
        needed: Callable[[], Iterable[Sequence[Node]]],
        release: Callable[[list[int]], None],
    ) -> None:
        self._config = config
        self._tree = tree
        self._needed = needed
        self._release = release
        self._searched = 0  # how many blocks had been taken at the last search
        tree.whole.most = config.most

    def fits(self, blocks: Iterable[int]) -> bool:
        """Whether sequences of these numbers of blocks can run at once."""
        return sum(map(self._config.needs, blocks)) <= self._config.kept

    def usable(self, before: Sequence[Node], match: Match) -> Match:
        """The part of `match`, behind the nodes `before`, after which a sequence can go on."""
        behind, best = self._config.behind, 0
        tail = before[max(0, len(before) - behind) :]
        gap = -behind - 1  # the place of the last node that is not whole
        for place, node in enumerate(tail, -len(tail)):
            gap = gap if node.whole else place
        for place, node in enumerate(match.nodes):
            gap = gap if node.whole else place
            if gap <= place - behind:
                best = place + 1
        if best == len(match.nodes) and (match.partial is None or match.partial.whole):
            return match
        return Match(match.nodes[:best])

    def make_room(self) -> None:
        """Before a step: release windows that nothing is likely to read, the longest unread first,
        until as few blocks are whole as may be."""
        whole, config = self._tree.whole, self._config
        excess = whole.count - config.kept
        if excess > 0 and whole.taken - self._searched >= config.most // _SEARCH_SHARE:
            self._searched = whole.taken
            found = sorted(self._inner(), key=lambda node: node.read)[:excess]
            for node in found:
                whole.release(node)
        self._give_back()

    def _give_back(self) -> None:
        """Give back the memory of released windows, and of free blocks once there are too many."""
        whole = self._tree.whole
        spare = len(whole.backed) - self._config.most
        free = (block for block in self._tree.pool.longest_free() if block in whole.backed)
        blocks = [*whole.released, *itertools.islice(free, max(0, spare))]
        if blocks:
            self._release(blocks)
            whole.backed.difference_update(blocks)
            whole.released.clear()

    def _inner(self) -> list[Node]:
        """The nodes whose windows are read only by a sequence that branches off where none did."""
        config, below = self._config, dict[Node, int]()
        held = {node for path in self._needed() for node in path}
        found = []
        for node in reversed(list(self._tree.nodes())):  # children first
            children = [one for some in node.children.values() for one in some.values()]
            ends = len(children) != 1 or node.wanted or _is_end(node)
            below[node] = 0 if ends else below[children[0]] + 1
            if below[node] > config.behind and node.whole and node not in held:
                found.append(node)
        return found


def _is_end(node: Node) -> bool:
    """Whether a context that is named ends in this node."""
    return any(not one.released for group in node.ends.values() for one in group)
