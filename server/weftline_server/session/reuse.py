"""Which live primitives of a session share a prefix, so that a kept context can serve them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

# Of the primitives that share a prefix, this many are compared for the one that runs first.
_MOST_LOOKED_AT = 16


class Reuse:
    """The live primitives of a session by the hashes of their prompts' prefixes."""

    def __init__(self) -> None:
        self._readers: dict[str, dict[str, None]] = {}  # hash → primitives, oldest first
        self._hashes: dict[str, tuple[str, ...]] = {}

    def add(self, primitive: str, hashes: Sequence[str]) -> None:
        """Enter a primitive with its prefix hashes; entering the same primitive again changes
        nothing.

        An empty segment has the hash of the segment before it, so a hash may occur twice.
        """
        if primitive not in self._hashes:
            self._hashes[primitive] = tuple(dict.fromkeys(hashes))
            for hash in self._hashes[primitive]:
                self._readers.setdefault(hash, {})[primitive] = None

    def end(self, primitive: str) -> None:
        """The primitive has ended, and reads nothing more."""
        for hash in self._hashes.pop(primitive, ()):
            readers = self._readers[hash]
            readers.pop(primitive, None)
            if not readers:
                del self._readers[hash]

    def readers(self, hashes: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
        """The number of leading `hashes` that live primitives share, and up to 16 of these.

        None if no live primitive has the first hash.
        """
        found: tuple[int, tuple[str, ...]] | None = None
        for count, calls in enumerate(self._runs(hashes), 1):
            found = count, tuple(itertools.islice(calls, _MOST_LOOKED_AT))
        return found

    def _runs(self, hashes: Sequence[str]) -> Iterator[dict[str, None]]:
        for hash in hashes:
            calls = self._readers.get(hash)
            if calls is None:
                return
            yield calls
