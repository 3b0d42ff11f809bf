"""Where prompts part, for a model whose state is kept at few places. It is pure.

vLLM keeps a recurrent state at the last whole block of a prompt, and nowhere before. So a prompt
that parts from earlier ones finds nothing of them, unless the state was kept there, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from weftline_engine.remote.border_choice import chosen
from weftline_engine.remote.common_tokens import common
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS

MOST_PROMPTS = 64  # that are compared with a new one
# Borders of one prompt. Each costs a step of its own, and the memory of a state. The shortest
# beginnings of a long conversation are of least use.
MOST_BORDERS = 16
# Borders at which later prompts may part, by the template of this one. They may never come.
MOST_LIKELY = 4

Prompt = tuple[str, tuple[int, ...]]
"""The salt and the tokens."""


@dataclass(frozen=True, slots=True)
class Border:
    """Another prompt parts behind the first `end` tokens, which are whole blocks. `is_kept` says
    that a state is kept there, or a little before, by a prompt that was sent."""

    end: int
    is_kept: bool


class Borders:
    """The last prompts of one server, which keeps states in blocks of so many tokens."""

    def __init__(self, block: int = 1) -> None:
        self.block = block
        self._prompts: deque[Prompt] = deque(maxlen=MOST_PROMPTS)

    def add(self, tokens: tuple[int, ...], salt: str) -> None:
        """Note a prompt. Its state is kept at its last whole block, and its last token is always
        computed."""
        self._prompts.append((salt, tokens))

    def of(self, tokens: tuple[int, ...], salt: str, likely: tuple[int, ...] = ()) -> list[Border]:
        """The borders of a prompt, the shortest beginning first. They are not near each other,
        because a few tokens are computed sooner than a step or a request begins.

        Later prompts are `likely` to part behind so many tokens, the likeliest first.
        """
        parts, kept = set[int](), [0]
        for shared, length in self._shared(tokens, salt):
            at = self._whole(length - 1)
            if at <= shared:
                kept.append(at)
            if shared < length:
                parts.add(self._whole(min(shared, len(tokens) - 1)))
        ends = (self._whole(min(border, len(tokens) - 1)) for border in likely)
        parts.update(chosen(ends, (0, *parts), least=WARM_TOKENS, most=MOST_LIKELY))
        found: list[Border] = []
        for end in sorted(parts):
            if end - (found[-1].end if found else 0) >= WARM_TOKENS:
                nearest = max(at for at in kept if at <= end)
                found.append(Border(end, end - nearest < WARM_TOKENS))
        return found[-MOST_BORDERS:]

    def is_new(self, tokens: tuple[int, ...], salt: str) -> bool:
        """Whether no earlier prompt begins like this one."""
        return all(shared < WARM_TOKENS for shared, _ in self._shared(tokens, salt))

    def _whole(self, tokens: int) -> int:
        """The tokens of the whole blocks."""
        return tokens // self.block * self.block

    def _shared(self, tokens: tuple[int, ...], salt: str) -> Iterator[tuple[int, int]]:
        """What each of the other prompts has in common with this one, and its length."""
        for found, one in self._prompts:
            if found == salt and one != tokens:
                yield common(one, tokens), len(one)
