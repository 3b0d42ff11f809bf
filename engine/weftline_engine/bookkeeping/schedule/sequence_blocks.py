"""How a sequence reuses blocks of the context tree, and adds its own blocks to it."""

from __future__ import annotations

from weftline_engine.bookkeeping.kv.tree import ContextTree, Node
from weftline_engine.bookkeeping.kv.windows import Windows
from weftline_engine.bookkeeping.schedule.sequence import Sequence


class SequenceBlocks:
    """Moves blocks between sequences and the tree. All methods change the given sequence."""

    def __init__(
        self, tree: ContextTree, running: list[Sequence], windows: Windows | None = None
    ) -> None:
        self._tree = tree
        self._size = tree.block_size
        self._running = running
        self._windows = windows

    def reuse(self, sequence: Sequence) -> tuple[int, int] | None:
        """Skip the next tokens as far as the tree holds them, from earlier steps or from this one.
        Returns a block to copy (source, target) if they end within a block of the tree.

        A block of its own that is not full (the copied end of a context) is replaced by a full one.
        """
        size, before = self._size, sequence.computed
        begin = len(sequence.held) * size
        if before - begin >= size:
            return None  # a block of its own duplicates a node until the step is applied
        # The last token of a prompt is always computed, because its logits are needed.
        last = len(sequence.tokens) - (1 if sequence.generates else 0)
        if last <= before or (sequence.filled and sequence.left == 1):
            return None
        tree = self._tree
        match = tree.match(self._end(sequence), sequence.tokens[begin:last], tree.step)
        if self._windows is not None:
            match = self._windows.usable(sequence.held, match)
        if before > begin and not match.nodes:
            return None
        for node in match.nodes:
            tree.hold(node)
            # The block was computed for another sequence: eviction counts the use.
            node.read_at(tree.now, sequence.hints.application)
        for block in sequence.blocks[len(sequence.held) :]:  # one, or none
            tree.pool.give(block)
        sequence.blocks[len(sequence.held) :] = [node.block for node in match.nodes]
        sequence.held.extend(match.nodes)
        sequence.computed = begin + len(match.nodes) * size
        found: tuple[int, int] | None = None
        copy = tree.reserve(match.partial) if match.partial else None
        if match.partial is not None and copy is not None:  # else it computes these few itself
            found = match.partial.block, copy
            sequence.blocks.append(copy)
            sequence.computed += match.extra
        if not sequence.filled:
            sequence.cached += min(sequence.computed, sequence.prompt) - before
        return found

    def enter(self, sequence: Sequence, *, final: bool) -> None:
        """Add the sequence's full blocks to the tree, as far as all their tokens are known. If
        another sequence has added the same tokens first, its block replaces ours, but only after
        the step (`final`), because the step may still write to ours."""
        size = self._size
        whole = min(sequence.computed, sequence.known) // size
        for index in range(len(sequence.held), whole):
            tokens = tuple(sequence.tokens[index * size : (index + 1) * size])
            parent = self._end(sequence)
            node = self._add(sequence, parent, tokens, index)
            if node is None:
                if not final:
                    return
                node = self._tree.find(parent, tokens)
                assert node is not None, "the tree refused a second node for these tokens"
                self._replace(sequence, index, node)
            sequence.held.append(node)

    def enter_tail(self, sequence: Sequence) -> None:
        """Add the last block of a context to the tree. It is not full."""
        done = len(sequence.held) * self._size
        tokens = tuple(sequence.tokens[done : sequence.computed])
        if not tokens:
            return
        index, parent = len(sequence.held), self._end(sequence)
        node = self._tree.find(parent, tokens)
        if node is not None and not node.whole and len(node.tokens) > len(tokens):
            node = None  # our block lacks tokens of that one, and cannot take its place
        if node is None:
            node = self._add(sequence, parent, tokens, index)
            assert node is not None, "the tree was searched for these tokens"
        else:
            self._replace(sequence, index, node)
        sequence.held.append(node)

    def trim(self, sequence: Sequence) -> None:
        """Free the sequence's own blocks after its last computed token."""
        used = max(len(sequence.held), -(-sequence.computed // self._size))
        for block in sequence.blocks[used:]:
            self._tree.pool.give(block)
        del sequence.blocks[used:]

    def cut(self, sequence: Sequence) -> list[int]:
        """Cut the blocks that only this sequence uses out of the tree, and return them."""
        own = [i for i, node in enumerate(sequence.held) if node.holders == 1]
        first = min(own, default=len(sequence.held))
        if own:
            self._tree.forget(sequence.held[first])
        return sequence.blocks[first:]

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's own blocks, and release the nodes that it holds."""
        for block in sequence.blocks[len(sequence.held) :]:
            self._tree.pool.give(block)
        self._tree.release(sequence.held)
        sequence.blocks, sequence.held = [], []

    def _add(
        self, sequence: Sequence, parent: Node, tokens: tuple[int, ...], index: int
    ) -> Node | None:
        block, reader = sequence.blocks[index], sequence.hints.application
        return self._tree.add(parent, tokens, block, self._tree.step, reader)

    def _replace(self, sequence: Sequence, index: int, node: Node) -> None:
        self._tree.hold(node)
        own = sequence.blocks[index]
        if not node.whole:
            # Our block has equal keys, and those of the sliding layers, too.
            own, new = self._tree.whole.exchange(node, own), own
            for other in self._running:
                if other.held[index : index + 1] == [node]:
                    other.blocks[index] = new
        self._tree.pool.give(own)
        sequence.blocks[index] = node.block

    def _end(self, sequence: Sequence) -> Node:
        return sequence.held[-1] if sequence.held else self._tree.root(sequence.op.salt)
