"""Which freed contexts are likely to be read again, by what earlier ones did. It is pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from weftline_engine.api import Return
from weftline_engine.remote.return_count import ReturnCount, return_counts

# Contexts whose ops have ended and that are not freed, and freed ones that may return.
MOST_LEFT, MOST_FREED = 4096, 256
# From this share on they keep vLLM's order. What is evicted first and returns is computed again,
# and at first nothing is known. With 0.5 six chats in a pool for all of them computed 9,194 to
# 12,778 tokens of their prompts, and 8,298 with vLLM alone.
LIKELY = 0.25


class FreedReturns:
    """The ends of prompts, each the name of its last whole block, and how often they return."""

    def __init__(self) -> None:
        self._counts = return_counts()
        self._left: OrderedDict[str, tuple[Hashable, ReturnCount]] = OrderedDict()  # by context
        self._names: dict[Hashable, str] = {}  # the contexts that are left, by the end
        self._freed: OrderedDict[Hashable, ReturnCount] = OrderedDict()  # by the end

    def leave(self, context: str, end: Hashable, kind: Return) -> None:
        """The op of a context has ended."""
        self._left[context] = end, self._counts[kind]
        self._names[end] = context
        while len(self._left) > MOST_LEFT:
            self._forget(next(iter(self._left)))

    def come(self, blocks: Iterable[Hashable]) -> None:
        """A prompt has come that has these blocks. A context that it continues before that is freed
        says nothing of freed ones."""
        if not self._freed and not self._names:
            return
        for block in blocks:
            if (context := self._names.get(block)) is not None:
                self._forget(context)
            if (count := self._freed.pop(block, None)) is not None:
                count.returned += 1

    def free(self, context: str) -> bool:
        """A context is freed. Whether a later prompt is likely to begin with its own."""
        if (found := self._forget(context)) is None:
            return False
        end, count = found
        self._freed[end] = count
        while len(self._freed) > MOST_FREED:
            _, oldest = self._freed.popitem(last=False)
            oldest.gone += 1
        return count.share >= LIKELY

    def _forget(self, context: str) -> tuple[Hashable, ReturnCount] | None:
        found = self._left.pop(context, None)
        if found is not None and self._names.get(found[0]) == context:
            del self._names[found[0]]
        return found
