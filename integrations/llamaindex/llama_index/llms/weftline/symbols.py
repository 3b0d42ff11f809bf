"""Texts with answers in them that are not there yet.

While a plan is made, an answer to come is a symbol: a short text that occurs nowhere else, so that
templates and joins carry it to where the answer will stand.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weftline import transforms

Spec = Mapping[str, Any]
"""A transform as data (weftline.transforms)."""

_DICTS = ("json", "structured", "xml", "regex", "regex_dict", "combining")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of call number `index`, as the transforms `steps` leave it."""

    index: int
    steps: tuple[Spec, ...] = ()

    def then(self, *steps: Spec) -> Answer:
        """The same after more transforms."""
        return Answer(self.index, (*self.steps, *steps))

    @property
    def has_braces(self) -> bool:
        """Whether its text is that of a dict, as far as one can know."""
        return any(step["op"] in _DICTS for step in self.steps) and self.steps[-1]["op"] == "str"

    def of(self, answers: Mapping[int, Any]) -> str:
        """Its text, among those that are known. Raises TransformFailed."""
        text: str = transforms.run(self.steps, answers[self.index])
        return text


Part = str | Answer


@dataclass(frozen=True)
class Symbols:
    """Makes the symbols of one plan, and finds them again."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    _known: list[Answer] = field(default_factory=list)

    def text(self, answer: Answer) -> str:
        """The symbol of `answer`: private characters around a number that nobody can guess.

        LlamaIndex's LangchainOutputParser doubles the braces of its instructions where the prompt
        before them has any, so an answer that will have some has them as a symbol too.
        """
        if answer not in self._known:
            self._known.append(answer)
        braces = "{}" if answer.has_braces else ""
        return f"\ue000{self.nonce}.{self._known.index(answer)}{braces}\ue001"

    def parts(self, text: str) -> tuple[Part, ...]:
        """`text` cut at its symbols; no part is empty."""
        found: list[Part] = []
        end = 0
        for match in re.finditer(f"\ue000{self.nonce}\\.(\\d+)(?:{{}})?\ue001", text):
            found += [text[end : match.start()], self._known[int(match[1])]]
            end = match.end()
        return tuple(part for part in (*found, text[end:]) if part != "")


def reads(parts: tuple[Part, ...]) -> frozenset[int]:
    """The calls whose answers stand in `parts`."""
    return frozenset(part.index for part in parts if isinstance(part, Answer))


def filled(parts: tuple[Part, ...], answers: Mapping[int, Any]) -> str:
    """The text of `parts`. Raises TransformFailed."""
    return "".join(part if isinstance(part, str) else part.of(answers) for part in parts)
