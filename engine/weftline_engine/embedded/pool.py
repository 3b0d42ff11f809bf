"""The pool of KV blocks: which are free. A block has one owner, a tree node or a sequence."""

from __future__ import annotations


class BlockPool:
    """Blocks 0 .. count - 1, each free or taken. Sharing is the tree's: its nodes count holders."""

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
