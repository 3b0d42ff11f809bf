"""The contexts whose KV cache the engines were told to copy to host memory, within a bound."""

from __future__ import annotations


class HostCopies:
    """The host copies of each engine's contexts, in tokens, the oldest first."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[str, int]] = {}

    def add(self, engine: str, context: str, tokens: int, most: int) -> list[str] | None:
        """Note a copy. Return the contexts whose copies must go, so that `most` tokens suffice.

        Return None if the copy alone is too large, and note nothing.
        """
        if tokens > most:
            return None
        copies = self._tokens.setdefault(engine, {})
        copies.pop(context, None)
        room, gone = most - tokens - sum(copies.values()), []
        for old, size in copies.items():
            if room >= 0:
                break
            room += size
            gone.append(old)
        for old in gone:
            del copies[old]
        copies[context] = tokens
        return gone

    def has(self, engine: str, context: str) -> bool:
        return context in self._tokens.get(engine, {})

    def forget(self, engine: str, context: str) -> None:
        """The context was freed, and its copy with it."""
        self._tokens.get(engine, {}).pop(context, None)

    def lose(self, engine: str) -> None:
        """The engine is gone with all its copies."""
        self._tokens.pop(engine, None)
