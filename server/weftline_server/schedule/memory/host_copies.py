"""The contexts whose KV cache the engines were told to copy to host memory, within a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The copy of a context of `tokens` tokens, which will be read at second `at`."""

    tokens: int
    at: float


class HostCopies:
    """The host copies of each engine's contexts."""

    def __init__(self) -> None:
        self._copies: dict[str, dict[str, HostCopy]] = {}

    def add(
        self, engine: str, context: str, copy: HostCopy, most: int, now: float
    ) -> list[str] | None:
        """Note a copy. Return the contexts whose copies must go, so that `most` tokens suffice.

        Copies go that will be read later than this one, or at the same time. As in the cache, a
        read that is overdue counts like one to come. Return None if there are too few of them, and
        note nothing.
        """
        copies = self._copies.setdefault(engine, {})
        copies.pop(context, None)
        room, gone = most - copy.tokens - sum(one.tokens for one in copies.values()), list[str]()
        later = sorted(copies.items(), key=lambda one: -abs(one[1].at - now))
        for name, old in later:
            if room >= 0 or abs(old.at - now) < copy.at - now:
                break
            room += old.tokens
            gone.append(name)
        if room < 0:
            return None
        for name in gone:
            del copies[name]
        copies[context] = copy
        return gone

    def has(self, engine: str, context: str) -> bool:
        return context in self._copies.get(engine, {})

    def forget(self, engine: str, context: str) -> None:
        """The context was freed, and its copy with it."""
        self._copies.get(engine, {}).pop(context, None)

    def lose(self, engine: str) -> None:
        """The engine is gone with all its copies."""
        self._copies.pop(engine, None)
