"""Contexts: named ranges of tokens. They hold blocks, release them, and report how many of their
tokens are left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from weftline_engine.api import Op, Residency, Retention
from weftline_engine.bookkeeping.kv.extents import Extent
from weftline_engine.bookkeeping.kv.tree import ContextTree, Node

# The most freed contexts that are still reported, and the most tokens of them, as a multiple of the
# tokens of the KV pool. A name takes 0.5 kB, and each of its tokens up to 36 bytes.
MOST_RELEASED = 4096
MOST_RELEASED_POOLS = 4


class Storage(Protocol):
    """The keys and values of the blocks, wherever an engine keeps them."""

    def save(self, blocks: Items[int]) -> object | None:
        """Copy these blocks to host memory; returns what `restore` needs. None if there is no
        memory for the copy now."""
        ...

    def restore(self, saved: object, pairs: Items[tuple[int, int]]) -> bool:
        """Copy the saved block at index source to block target, for each (source, target). False
        if there is no memory for the copy now."""
        ...

    def wipe(self, blocks: Items[int], place: int | None = None) -> None:
        """Fill these blocks with zeros, or the place of one token in each."""
        ...

    def release(self, blocks: Items[int]) -> None:
        """Give back the memory of the sliding layers' keys in these blocks. A block is read there
        only after it was written again."""
        ...


@dataclass(eq=False, slots=True, kw_only=True)
class Context(Extent):
    """A named range of tokens. Its tokens stay known when its KV cache is evicted.

    `held` pins the nodes of `tokens`. It is empty while the op that makes the context runs, after
    the context was unpinned, and while its blocks are `saved` in host memory.
    """

    id: str
    salt: str
    maker: str  # the op
    attempt: int
    held: list[Node] = field(default_factory=list)
    ready: bool = False
    used: int = 0  # a counter's value at the last use
    saved: object | None = None
    gaps: frozenset[int] = frozenset()  # the saved blocks that are not whole
    told: tuple[Residency, int] | None = None  # what was reported last

    @property
    def state(self) -> tuple[Residency, int]:
        """Where the context's KV cache is, and how many of its tokens are left there."""
        if self.saved is not None:
            return Residency.HOST, self.computed
        return (Residency.RESIDENT if self.resident else Residency.DROPPED), self.resident


class Contexts:
    """The contexts of an engine: the `named` ones, and the released ones. A released context was
    freed, but the tree still holds tokens of it."""

    def __init__(self, tree: ContextTree, storage: Storage) -> None:
        self.named: dict[str, Context] = {}
        self._tree = tree
        self._storage = storage
        self._by_op: dict[str, Context] = {}
        self._released: dict[str, Context] = {}  # the oldest first
        self._released_tokens = 0
        self._clock = itertools.count(1)

    def add(self, op: Op) -> Context:
        """Name the context that this op makes."""
        context = Context(id=op.context, salt=op.salt, maker=op.id, attempt=op.attempt)
        self.named[op.context] = self._by_op[op.id] = context
        return context

    def made_by(self, op: str) -> Context | None:
        """The named context that this op makes or has made."""
        return self._by_op.get(op)

    def find(self, name: str) -> Context | None:
        """The context with this name. It may have been freed and still be reported."""
        return self.named.get(name) or self._released.get(name)

    def settle(self, context: Context, tokens: Items[int], nodes: Items[Node], count: int) -> None:
        """Make the context ready: pin `nodes`, which hold the first `count` of its tokens."""
        context.tokens = tuple(tokens)
        context.computed = count
        context.held = list(nodes)
        for node in nodes:
            self._tree.hold(node)
        context.ready = True
        self.touch(context)
        self._follow(context, nodes)

    def abandon(self, context: Context, tokens: Items[int], nodes: Items[Node]) -> None:
        """Forget the name of a context that will never be ready. The tree still holds `nodes`,
        whole blocks of it, which are reported until they are evicted."""
        self._unname(context)
        if nodes:
            context.computed = len(nodes) * self._tree.block_size
            context.tokens = tuple(tokens[: context.computed])
            self._follow(context, nodes)
            self._release(context)

    def touch(self, context: Context) -> None:
        """Note a use of the context. The least recently used context is unpinned first."""
        context.used = next(self._clock)

    def _unpin(self, context: Context) -> None:
        """Let its blocks be evicted when they are needed."""
        self._tree.release(context.held)
        context.held = []

    def unpin_oldest(self) -> bool:
        """Unpin the context that was used longest ago. False if none is pinned."""
        pinned = [context for context in self.named.values() if context.held]
        if not pinned:
            return False
        self._unpin(min(pinned, key=lambda context: context.used))
        return True

    def pin(self, context: Context) -> None:
        """Pin the tokens that are left. Copy the others back if they were saved, as far as there
        are blocks without another holder."""
        if context.held:
            return
        tree = self._tree
        node = tree.root(context.salt)
        blocks = _block_tokens(context, tree.block_size)
        for tokens in blocks:
            found = tree.find(node, tokens)
            if found is None:
                break
            tree.hold(found)
            context.held.append(found)
            node = found
        # The tree has no node behind one that is missing.
        if context.saved is not None and len(context.held) < len(blocks):
            self._bring_back(context, blocks, node)
        if context.resident >= context.computed:
            self._forget_saved(context)

    def _bring_back(self, context: Context, blocks: Items[tuple[int, ...]], node: Node) -> None:
        """Copy the blocks behind those that are held, which end with `node`, from host memory.

        The tree gets them after the copy, because other sequences read what the tree holds. Without
        memory for the copy the context keeps what it holds.
        """
        tree, copies = self._tree, list[tuple[int, int]]()
        for index in range(len(context.held), len(blocks)):
            block = tree.reserve()
            if block is None:
                break
            copies.append((index, block))
        if copies and not self._storage.restore(context.saved, copies):
            for _, block in copies:
                tree.pool.give(block)
            return
        for index, block in copies:
            added = tree.add(node, blocks[index], block, tree.step)
            assert added is not None, "the tree was searched for these tokens"
            if index in context.gaps:
                tree.whole.release(added)
            context.held.append(added)
            node = added

    def retain(self, context: Context, retention: Retention) -> None:
        """Pin a context again, unpin it, or move its blocks to host memory.

        An unpinned context is evicted when its room is needed. It is computed again or copied back
        when it is continued.
        """
        match retention:
            case Retention.KEEP:
                self.pin(context)
            case Retention.EVICTABLE:
                self._unpin(context)
            case Retention.DROP:
                self._unpin(context)
                self._forget_saved(context)
            case Retention.SWAP if context.held:
                # Without memory for the copy the context is evicted when its room is needed.
                context.saved = self._storage.save([node.block for node in context.held])
                gaps = (index for index, node in enumerate(context.held) if not node.whole)
                context.gaps = frozenset(gaps)
                self._unpin(context)
                self._tree.extents.note(context)

    def expect(self, context: Context, pause_s: float, tokens: int | None) -> None:
        """Note that the first `tokens` of a context (None: all) will be read in `pause_s` seconds.
        The other tokens are unpinned."""
        tree, size = self._tree, self._tree.block_size
        path: Items[Node] = context.held
        if not path:
            path = tree.match(tree.root(context.salt), context.tokens, tree.step + 1).nodes
        if tokens is not None and tokens < context.computed:
            path = path[: -(-tokens // size)]
            tree.release(context.held[len(path) :])
            context.held = context.held[: len(path)]
        if path:
            tree.want(context.id, path[-1], tree.now + pause_s)

    def free(self, context: Context) -> None:
        """Unpin a context and forget its name. Reports about it go on until it is evicted."""
        self._unpin(context)
        self._tree.unwant(context.id)
        self._unname(context)
        self._forget_saved(context)
        self._release(context)

    def reports(self) -> list[Context]:
        """The contexts whose number of tokens left differs from the last report."""
        found = []
        for extent in self._tree.extents.changes():
            assert isinstance(extent, Context)
            if extent.released and not extent.resident:
                self._forget_released(extent)
            if extent.state != extent.told:
                extent.told = extent.state
                found.append(extent)
        return found

    def _follow(self, context: Context, nodes: Items[Node]) -> None:
        """From now on the context is reported, instead of an older one of the same name."""
        older = self._released.get(context.id)
        if older is not None:
            self._forget_released(older)
            older.told = Residency.DROPPED, 0  # not worth a report: the newer one's follows
        end = nodes[-1] if nodes else self._tree.root(context.salt)
        self._tree.extents.follow(context, end, context.computed)

    def _unname(self, context: Context) -> None:
        if self.named.get(context.id) is context:
            del self.named[context.id]
        if self._by_op.get(context.maker) is context:
            del self._by_op[context.maker]

    def _forget_saved(self, context: Context) -> None:
        if context.saved is not None:
            context.saved = None
            self._tree.extents.note(context)

    def _release(self, context: Context) -> None:
        """Keep a freed context until the tree holds none of its tokens. If there are too many, the
        oldest are reported as dropped."""
        context.released = True
        self._released[context.id] = context
        self._released_tokens += len(context.tokens)
        self._tree.extents.note(context)
        most = MOST_RELEASED_POOLS * self._tree.pool.count * self._tree.block_size
        while len(self._released) > MOST_RELEASED or self._released_tokens > most:
            self._forget_released(next(iter(self._released.values())))

    def _forget_released(self, context: Context) -> None:
        if self._released.get(context.id) is context:
            del self._released[context.id]
            self._released_tokens -= len(context.tokens)
        self._tree.extents.stop(context)


def _block_tokens(context: Context, size: int) -> list[tuple[int, ...]]:
    """The computed tokens of a context, `size` at a time."""
    return [
        context.tokens[at : min(at + size, context.computed)]
        for at in range(0, context.computed, size)
    ]
