"""Which calls of a session begin alike: what one has computed, which others have yet to read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

# Calls that begin alike and are looked at for the one that comes first.
_MOST_LOOKED_AT = 16


class Reuse:
    """The live calls of a session by the hashes of their prompts' beginnings."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, None]] = {}  # hash → calls in the order of their coming
        self._hashes: dict[str, tuple[str, ...]] = {}

    def add(self, call: str, hashes: Sequence[str]) -> None:
        """Enter a call with the hashes at its segments' ends; once is enough.

        An empty segment ends where the one before it does, so a hash may be there twice.
        """
        if call not in self._hashes:
            self._hashes[call] = tuple(dict.fromkeys(hashes))
            for hash in self._hashes[call]:
                self._calls.setdefault(hash, {})[call] = None

    def end(self, call: str) -> None:
        """The call has ended, and will read nothing more."""
        for hash in self._hashes.pop(call, ()):
            calls = self._calls[hash]
            calls.pop(call, None)
            if not calls:
                del self._calls[hash]

    def readers(self, hashes: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
        """How many of `hashes`, from the first, other live calls have too, and which calls (some of
        them, where there are many); None where no call has the first one."""
        found: tuple[int, tuple[str, ...]] | None = None
        for count, calls in enumerate(self._runs(hashes), 1):
            found = count, tuple(itertools.islice(calls, _MOST_LOOKED_AT))
        return found

    def _runs(self, hashes: Sequence[str]) -> Iterator[dict[str, None]]:
        for hash in hashes:
            calls = self._calls.get(hash)
            if calls is None:
                return
            yield calls
