"""The files to which slots were written: which tokens each holds, and which one gives way.

This module is pure. Names come from a small fixed set, so that a server of others, whose folder
cannot be cleaned from here, never holds more than these files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from weftline_engine.remote.common_tokens import common
from weftline_engine.remote.llamacpp.state_cut import StateCut


@dataclass(eq=False, slots=True)
class SavedState:
    """The state of a slot in a file. `used` counts up with each use."""

    name: str
    tokens: tuple[int, ...]
    salt: str
    used: int = 0
    users: int = 0  # requests that will read or write it


class SavedFiles:
    """At most `count` files with `most` tokens in all, of a model whose states have this `cut`."""

    def __init__(self, most: int, count: int, cut: StateCut) -> None:
        self.most = most
        self.cut = cut
        self._names = [f"weftline-{number}.bin" for number in reversed(range(count))]
        self._states: list[SavedState] = []

    def of(self, salt: str) -> Iterator[SavedState]:
        return (one for one in self._states if one.salt == salt)

    def longest(
        self, tokens: Sequence[int], salt: str, *, grows: bool = False
    ) -> tuple[SavedState | None, int]:
        """The file that saves a prompt most, and how many of its tokens need not be computed. A
        prompt that `grows` will have more than these tokens."""
        best, most = None, 0
        for one in self.of(salt):
            usable = self.usable(one.tokens, tokens, grows=grows)
            if usable > most:
                best, most = one, usable
        return best, most

    def usable(self, held: Sequence[int], tokens: Sequence[int], *, grows: bool = False) -> int:
        """How many tokens of a prompt a file of the `held` ones would save."""
        wanted = len(tokens) + grows
        return self.cut.of_files.usable(common(held, tokens), len(held), wanted)

    def add(
        self,
        tokens: tuple[int, ...],
        salt: str,
        used: int,
        kept: Collection[tuple[int, ...]] = (),
    ) -> SavedState | None:
        """Make room for a state. None if it would not fit, or all files are in use.

        The state that was used longest ago gives way first. States that begin with one of `kept`
        give way last.
        """
        if len(tokens) > self.most or not tokens:
            return None
        idle = [one for one in self._states if not one.users]
        idle.sort(
            key=lambda one: (any(one.tokens[: len(all)] == all for all in kept if all), one.used)
        )
        total = sum(len(one.tokens) for one in self._states)
        while total + len(tokens) > self.most or not self._names:
            if not idle:
                return None
            gone = idle.pop(0)
            total -= len(gone.tokens)
            self.remove(gone)
        state = SavedState(self._names.pop(), tokens, salt, used)
        self._states.append(state)
        return state

    def remove(self, state: SavedState) -> None:
        """Forget a state. Its name is used again."""
        if state in self._states:
            self._states.remove(state)
            self._names.append(state.name)

    def close(self) -> None:
        """Forget all states, and take no more."""
        self._states.clear()
        self.most = 0
