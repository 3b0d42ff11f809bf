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
Places = tuple[int, ...] | None  # of `api.ContextMoved`
# A state behind a prefix, at most at this many times its length, counts as one at its
# end: where two prompts part is known to one of PREFIX_TOKENS only, which are so far apart.
NEAR = 4 / 3


class KnownPrefixes(Protocol):
    """The hashes of the prefixes that an engine's KV cache should hold, or will soon hold."""

    @property
    def hashes(self) -> Collection[str]:
        """The hashes of the known prefixes: a view that follows later changes."""
        ...

    @property
    def barred(self) -> Collection[str]:
        """Of these, the prefixes whose model state is not kept, so that a prompt that parts there
        computes them again: a view, too."""
        ...

    def expect(self, context: str, prefixes: Prefixes) -> None:
        """An op was submitted that will compute `context`, whose prompt begins with `prefixes`."""
        ...

    def moved(
        self, context: str, residency: api.Residency, tokens: int, places: Places = None
    ) -> None:
        """The engine holds the first `tokens` tokens of the context, on the device or the host. It
        goes on only behind `places`; None is behind any token."""
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
    places: Places = None

    def known(self) -> list[tuple[str, bool]]:
        """The prefixes that count, and of each whether it is barred."""
        if self.coming:
            return [(hash, False) for hash, _ in self.prefixes]
        known = [one for one in self.prefixes if one[1] <= self.tokens]
        if self.places is None:
            return [(hash, False) for hash, _ in known]
        ends = (*(length for _, length in known), self.tokens + 1)
        return [(hash, not self._goes_on(*ends[at : at + 2])) for at, (hash, _) in enumerate(known)]

    def _goes_on(self, length: int, next: int) -> bool:
        """Whether a state is kept behind a prefix, before the `next` one or near."""
        assert self.places is not None, "without them it goes on anywhere"
        return any(length <= place < max(next, NEAR * length) for place in self.places)


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
        self.barred: set[str] = set()
        self._passing: dict[str, int] = {}  # hash → contexts in which it is barred

    def expect(self, context: str, prefixes: Prefixes) -> None:
        self._forget(context)
        if prefixes:
            self._contexts[context] = _Context(prefixes)
            self._count(self._contexts[context], 1)
            self._shrink()

    def moved(
        self, context: str, residency: api.Residency, tokens: int, places: Places = None
    ) -> None:
        found = self._contexts.get(context)
        if found is None:
            return  # its prompt is not known (any more)
        self._count(found, -1)
        found.coming = False
        found.tokens = 0 if residency is api.Residency.DROPPED else tokens
        found.on_host = residency is api.Residency.HOST
        found.places = places
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
        self.barred.clear()
        self._passing.clear()

    def _count(self, context: _Context, step: int) -> None:
        """A prefix is barred while it is so in all contexts that have it."""
        for hash, is_barred in context.known():
            count = _added(self.hashes, hash, step)
            if is_barred or hash in self._passing:
                passing = _added(self._passing, hash, step * is_barred)
                (self.barred.add if 0 < passing == count else self.barred.discard)(hash)

    def _forget(self, context: str) -> None:
        if (found := self._contexts.pop(context, None)) is not None:
            self._count(found, -1)

    def _shrink(self) -> None:
        while len(self._contexts) > self._most or len(self.hashes) > self._most:
            oldest = next((id for id, one in self._contexts.items() if not one.coming), None)
            if oldest is None:
                return
            self._forget(oldest)


def _added(counts: dict[str, int], hash: str, step: int) -> int:
    """Add a step to a count, and forget it at zero."""
    count = counts.get(hash, 0) + step
    if count:
        counts[hash] = count
    else:
        counts.pop(hash, None)
    return count


class PrefixEstimate:
    """For an engine that does not report its contexts (vLLM, OpenAI endpoints): a guess.

    The guess assumes an LRU cache of `room` tokens: a prefix is there from its submission until
    later submissions have filled the cache. Failures and reports do not change the guess.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.barred: frozenset[str] = frozenset()
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

    def moved(
        self, context: str, residency: api.Residency, tokens: int, places: Places = None
    ) -> None:
        """Does nothing: such an engine's reports are not complete."""

    def lost(self, context: str) -> None:
        """Does nothing: a part of the prompt was probably computed."""

    def held(self, without: Collection[str]) -> tuple[int, int]:
        return self.tokens - sum(self.hashes.get(hash, 0) for hash in without), 0

    def clear(self) -> None:
        self.hashes.clear()
        self.tokens = 0
