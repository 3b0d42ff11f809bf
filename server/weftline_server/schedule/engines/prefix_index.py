"""Which prompt prefixes an engine's KV cache holds, by its reports or by an estimate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from weftline_engine import api

# At most this many prefixes are remembered of one engine, and at most this many contexts.
MAX_PREFIXES = 8192
UNKNOWN_POOL = 1 << 20  # tokens; assumed of an engine that does not announce its KV cache's size

Prefixes = tuple[tuple[str, int], ...]  # hash and length in tokens of a prompt's prefixes


class KnownPrefixes(Protocol):
    """The hashes of the prefixes that an engine's KV cache should hold, or will soon hold."""

    @property
    def hashes(self) -> Collection[str]:
        """The hashes of the known prefixes: a view that follows later changes."""
        ...

    def expect(self, context: str, prefixes: Prefixes) -> None:
        """An op was submitted that will compute `context`, whose prompt begins with `prefixes`."""
        ...

    def moved(self, context: str, residency: api.Residency, tokens: int) -> None:
        """The engine holds the first `tokens` tokens of the context, on the device or the host."""
        ...

    def lost(self, context: str) -> None:
        """The op of the context failed or was cancelled."""
        ...

    def held(self, without: Collection[str]) -> tuple[int, int]:
        """About how many tokens are on the device and on the host, except prefixes `without`.

        Tokens that several contexts share count once.
        """
        ...

    def clear(self) -> None:
        """The engine starts again with an empty cache."""
        ...


def known_prefixes(description: api.Description) -> KnownPrefixes:
    """Return the index for an engine that reports its contexts, else the estimate."""
    if api.Capability.REPORTS in description.capabilities:
        return PrefixIndex()
    return PrefixEstimate(description.kv_tokens or UNKNOWN_POOL)


@dataclass(slots=True)
class _Context:
    """A context's prefixes. They all count while it is `coming`, then up to `tokens`."""

    prefixes: Prefixes
    tokens: int = 0
    coming: bool = True
    on_host: bool = False

    def known(self) -> list[str]:
        return [hash for hash, length in self.prefixes if self.coming or length <= self.tokens]


class PrefixIndex:
    """For an engine that announces `reports`: the reported prefixes, plus those of running ops.

    A prefix counts while any context has it. All prefixes of an op count from its submission
    until the engine reports its context or the op is lost. Tokens on the host count like those on
    the device, because copying them back is cheaper than computing them. Beyond `most` prefixes
    or contexts, the contexts submitted first are forgotten, except those that are still coming.
    """

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        self._most = most
        self._contexts: dict[str, _Context] = {}  # the oldest submission first
        self.hashes: dict[str, int] = {}  # hash → contexts that have it

    def expect(self, context: str, prefixes: Prefixes) -> None:
        self._forget(context)
        if prefixes:
            self._contexts[context] = _Context(prefixes)
            self._count(self._contexts[context], 1)
            self._shrink()

    def moved(self, context: str, residency: api.Residency, tokens: int) -> None:
        found = self._contexts.get(context)
        if found is None:
            return  # its prompt is not known (any more)
        self._count(found, -1)
        found.coming = False
        found.tokens = 0 if residency is api.Residency.DROPPED else tokens
        found.on_host = residency is api.Residency.HOST
        self._count(found, 1)
        self._shrink()

    def lost(self, context: str) -> None:
        # The entry stays, so that a later report of what was computed can still be understood.
        self.moved(context, api.Residency.DROPPED, 0)

    def held(self, without: Collection[str]) -> tuple[int, int]:
        seen = set(without)
        counts = [0, 0]
        for one in sorted(self._contexts.values(), key=lambda one: one.on_host):
            if one.coming:
                continue
            known = 0
            for hash, length in one.prefixes:
                if length > one.tokens:
                    break
                counts[one.on_host] += 0 if hash in seen else length - known
                seen.add(hash)
                known = length
            counts[one.on_host] += one.tokens - known  # the rest is this context's own
        return counts[0], counts[1]

    def clear(self) -> None:
        self._contexts.clear()
        self.hashes.clear()

    def _count(self, context: _Context, step: int) -> None:
        for hash in context.known():
            count = self.hashes.get(hash, 0) + step
            if count:
                self.hashes[hash] = count
            else:
                del self.hashes[hash]

    def _forget(self, context: str) -> None:
        if (found := self._contexts.pop(context, None)) is not None:
            self._count(found, -1)

    def _shrink(self) -> None:
        while len(self._contexts) > self._most or len(self.hashes) > self._most:
            oldest = next((id for id, one in self._contexts.items() if not one.coming), None)
            if oldest is None:
                return
            self._forget(oldest)


class PrefixEstimate:
    """For an engine that does not report its contexts (vLLM, OpenAI endpoints): a guess.

    The guess assumes an LRU cache of `room` tokens: a prefix is there from its submission until
    later submissions have filled the cache. Failures and reports do not change the guess.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.hashes: dict[str, int] = {}  # hash → its tokens beyond the next shorter; oldest first
        self.tokens = 0  # the sum of these

    def expect(self, context: str, prefixes: Prefixes) -> None:
        # The longest prefix enters first, so that it is also dropped first of its prompt.
        lengths = (0, *(length for _, length in prefixes))
        for (hash, length), shorter in zip(prefixes[::-1], lengths[-2::-1], strict=True):
            self.tokens -= self.hashes.pop(hash, 0)
            self.hashes[hash] = length - shorter
            self.tokens += length - shorter
        while self.tokens > self._room or len(self.hashes) > MAX_PREFIXES:
            self.tokens -= self.hashes.pop(next(iter(self.hashes)))

    def moved(self, context: str, residency: api.Residency, tokens: int) -> None:
        """Does nothing: such an engine's reports are not complete."""

    def lost(self, context: str) -> None:
        """Does nothing: a part of the prompt was probably computed."""

    def held(self, without: Collection[str]) -> tuple[int, int]:
        return self.tokens - sum(self.hashes.get(hash, 0) for hash in without), 0

    def clear(self) -> None:
        self.hashes.clear()
        self.tokens = 0
