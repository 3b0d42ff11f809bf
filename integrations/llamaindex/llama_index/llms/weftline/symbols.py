"""Texts with answers in them that are not there yet.

While a plan is made, an answer to come is a symbol: a short text that occurs nowhere else, so that
templates and joins carry it to where the answer will stand.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of call number `index`; `stripped` of white space around it, as str.strip does."""

    index: int
    stripped: bool = False

    def of(self, texts: Mapping[int, str]) -> str:
        """Its text, among those that are known."""
        text = texts[self.index]
        return text.strip() if self.stripped else text


Part = str | Answer


@dataclass(frozen=True)
class Symbols:
    """Makes the symbols of one plan, and finds them again."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def text(self, answer: Answer) -> str:
        """The symbol of `answer`: private characters around a number that nobody can guess."""
        return f"\ue000{self.nonce}.{answer.index}{'s' if answer.stripped else ''}\ue001"

    def parts(self, text: str) -> tuple[Part, ...]:
        """`text` cut at its symbols; no part is empty."""
        found: list[Part] = []
        end = 0
        for match in re.finditer(f"\ue000{self.nonce}\\.(\\d+)(s?)\ue001", text):
            found += [text[end : match.start()], Answer(int(match[1]), bool(match[2]))]
            end = match.end()
        return tuple(part for part in (*found, text[end:]) if part != "")


def reads(parts: tuple[Part, ...]) -> frozenset[int]:
    """The calls whose answers stand in `parts`."""
    return frozenset(part.index for part in parts if isinstance(part, Answer))


def filled(parts: tuple[Part, ...], texts: Mapping[int, str]) -> str:
    """The text of `parts`."""
    return "".join(part if isinstance(part, str) else part.of(texts) for part in parts)
