"""The order in which blocks leave host memory: those that nobody will read, then the furthest read.

This module is pure and is told the time. The simulated engine uses it, and the cache policy in
vLLM's process.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

# Contexts that are remembered. Of the oldest it is forgotten when it will be read.
MOST_CONTEXTS = 4096


@dataclass(slots=True, eq=False)
class HeldBlock:
    """A block that was last used at second `used`. `application` is the first one that had it.

    `holders` contexts have the block. Of `readers` of them it is known when they will be read, and
    `keepers` of these are kept in host memory.
    """

    used: float
    application: str = ""
    is_shared: bool = False  # contexts of several applications have had it
    holders: int = 0
    readers: int = 0
    keepers: int = 0


@dataclass(slots=True, eq=False)
class HeldContext(Generic[Key]):
    """The blocks of a context, in the order of its text, and when it will be read: None if that is
    unknown, infinity for a copy that nobody will read. A kept one is expected."""

    blocks: list[tuple[Key, HeldBlock]]
    at: float | None = None
    is_kept: bool = False


class ReadOrder(Generic[Key]):
    """The blocks in host memory, and the contexts that have them.

    The blocks of ended contexts go first, except those that several applications have had, such as
    a common system prompt. Then go those of contexts that the server does not keep here, because
    the device may still have them, and then the kept ones.

    Of each of the two the block that is read last goes first. A read that is overdue by some
    seconds counts like one that will come in as many. So does a block of which nothing is known,
    and which was last used so many seconds ago: where nothing at all is known the order is LRU. Of
    the blocks of one context the last one goes first.
    """

    def __init__(self) -> None:
        self._blocks: dict[Key, HeldBlock] = {}
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._recent: OrderedDict[Key, None] = OrderedDict()  # without a known read: LRU first
        self._contexts: OrderedDict[str, HeldContext[Key]] = OrderedDict()
        # Of contexts still to come: when they will be read, and whether they are kept.
        self._early: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: Key) -> bool:
        return key in self._blocks

    def add(self, key: Key, now: float) -> None:
        """A block is written."""
        self._blocks[key] = HeldBlock(now)
        self._recent[key] = None

    def use(self, keys: Sequence[Key], now: float) -> None:
        """The blocks of a text are written or read."""
        for key in reversed(keys):
            block = self._blocks.get(key)
            if block is None:
                continue
            block.used = now
            if not block.readers:
                self._ended.pop(key, None)
                self._recent[key] = None
                self._recent.move_to_end(key)

    def remove(self, key: Key) -> None:
        """A block has gone."""
        del self._blocks[key]
        self._ended.pop(key, None)
        self._recent.pop(key, None)

    def leave(self, context: str, application: str, keys: Sequence[Key]) -> None:
        """An op has ended, and these are the blocks of its context."""
        self._forget(context, ended=False)
        blocks = [(key, block) for key in keys if (block := self._blocks.get(key)) is not None]
        for key, block in blocks:
            block.is_shared |= bool(block.application) and block.application != application
            block.application = block.application or application
            block.holders += 1
            if key in self._ended:
                del self._ended[key]
                self._recent[key] = None
        self._contexts[context] = HeldContext(blocks)
        if (early := self._early.pop(context, None)) is not None:
            at, kept = early
            self.expect(context, at)
            if kept:
                self.keep(context, at)
        while len(self._contexts) > MOST_CONTEXTS:
            self._forget(next(iter(self._contexts)), ended=False)

    def expect(self, context: str, at: float) -> None:
        """A context will be read at second `at`. Its op may still run."""
        found = self._contexts.get(context)
        if found is None:
            _, kept = self._early.get(context, (at, False))
            self._note_early(context, at, kept)
            return
        if found.at is None:
            for key, block in found.blocks:
                block.readers += 1
                if self._blocks.get(key) is block:
                    self._recent.pop(key, None)
        found.at = at

    def keep(self, context: str, now: float) -> None:
        """Keep the copy of a context, whose room on the device others need."""
        found = self._contexts.get(context)
        if found is None:
            at, _ = self._early.get(context, (now, True))
            self._note_early(context, at, True)
        if found is None or found.is_kept:
            return
        if found.at is None:
            self.expect(context, now)
        found.is_kept = True
        for _, block in found.blocks:
            block.keepers += 1

    def drop(self, context: str) -> None:
        """Nobody will read the copy of a context."""
        found = self._contexts.get(context)
        if found is None:
            self._note_early(context, math.inf, False)
            return
        self._unkeep(found)
        self.expect(context, math.inf)

    def free(self, context: str, *, may_return: bool = False) -> None:
        """Nobody will read the context again, as far as the server knows."""
        if context in self._contexts:
            self._forget(context, ended=not may_return)
        elif not may_return:
            self.drop(context)

    def first(self, now: float) -> Iterator[Key]:
        """All blocks, the first to go first. Change nothing before the last one was taken."""
        yield from self._ended
        recent, furthest = iter(self._recent), self._furthest(now)
        oldest, passed = next(recent, None), Counter[Key]()
        for wait_s, context in furthest:
            while oldest is not None and now - self._blocks[oldest].used >= wait_s:
                yield oldest
                oldest = next(recent, None)
            for key, block in self._there(context):
                passed[key] += 1
                if passed[key] == block.readers and not block.keepers:  # the others are read later
                    yield key
        while oldest is not None:
            yield oldest
            oldest = next(recent, None)
        kept = Counter[Key]()
        for _, context in furthest:
            for key, block in self._there(context) if context.is_kept else ():
                kept[key] += 1
                if kept[key] == block.keepers:
                    yield key

    def _note_early(self, context: str, at: float, kept: bool) -> None:
        self._early[context] = (at, kept)
        while len(self._early) > MOST_CONTEXTS:
            self._early.popitem(last=False)

    def _there(self, context: HeldContext[Key]) -> Iterator[tuple[Key, HeldBlock]]:
        """The blocks of a context that have not gone, the last one first."""
        for key, block in reversed(context.blocks):
            if self._blocks.get(key) is block:
                yield key, block

    def _unkeep(self, context: HeldContext[Key]) -> None:
        for _, block in context.blocks:
            block.keepers -= context.is_kept
        context.is_kept = False

    def _furthest(self, now: float) -> list[tuple[float, HeldContext[Key]]]:
        """The contexts with a known read and the seconds to it, the furthest first."""
        found = []
        for context in self._contexts.values():
            blocks = context.blocks
            while blocks and self._blocks.get(blocks[-1][0]) is not blocks[-1][1]:
                blocks.pop()
            if blocks and context.at is not None:
                found.append((abs(context.at - now), context))
        return sorted(found, key=lambda one: -one[0])

    def _forget(self, name: str, *, ended: bool) -> None:
        context = self._contexts.pop(name, None)
        if context is None:
            return
        self._unkeep(context)
        for key, block in reversed(context.blocks):
            block.holders -= 1
            block.readers -= context.at is not None
            if self._blocks.get(key) is not block or block.readers:
                continue
            if ended and not block.holders and not block.is_shared:
                self._recent.pop(key, None)
                self._ended[key] = None
            elif key not in self._ended and key not in self._recent:
                self._recent[key] = None
