"""Texts that contain answers that do not exist yet.

While a plan is made, a symbol stands for a future answer. It is a short text that occurs nowhere
else. Templates and joins put it at the place where the answer belongs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from weftline.contract import transforms

Spec = Mapping[str, Any]
"""A transform as data (weftline.contract.transforms)."""


class Given(Enum):
    """What a plan's prompts read beside the answers of its own calls."""

    HITS = "the nodes that were found for the query"
    PART = "one of the questions that a query was divided into"
    PAIRS = "the texts of these questions with their answers"
    REPLY = "what an engine has answered"


Index = int | Given
"""The number of a plan's call, or what is given beside the calls."""

_DICTS = ("json", "structured", "xml", "regex", "regex_dict", "combining")


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """The answer of call number `index`, or what is given, after the transforms `steps`."""

    index: Index
    steps: tuple[Spec, ...] = ()

    def then(self, *steps: Spec) -> PlannedAnswer:
        """This answer after further transforms."""
        return PlannedAnswer(self.index, (*self.steps, *steps))

    @property
    def has_braces(self) -> bool:
        """Whether the transforms make a dict, whose text has braces."""
        return any(step["op"] in _DICTS for step in self.steps) and self.steps[-1]["op"] == "str"

    def of(self, answers: Mapping[Index, Any]) -> str:
        """The text of the answer, given the known answers. Raises TransformFailed."""
        text: str = transforms.run(self.steps, answers[self.index])
        return text


Part = str | PlannedAnswer


@dataclass(frozen=True)
class Symbols:
    """Makes the symbols of one plan, and finds them in texts."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    _known: list[PlannedAnswer] = field(default_factory=list)
    _numbers: dict[tuple[Index, str], int] = field(default_factory=dict)  # of the known answers

    def text(self, answer: PlannedAnswer) -> str:
        """The symbol of `answer`: private characters around a number that cannot be guessed.

        LlamaIndex's LangchainOutputParser doubles the braces of its instructions if the prompt
        before them has braces. So the symbol of an answer that will have braces has them too.
        """
        number = self._numbers.setdefault((answer.index, repr(answer.steps)), len(self._known))
        if number == len(self._known):
            self._known.append(answer)
        braces = "{}" if answer.has_braces else ""
        return f"\ue000{self.nonce}.{number}{braces}\ue001"

    def are_whole_in(self, text: str) -> bool:
        """Whether all symbols in `text` are intact. A filter of a template may change one."""
        known = [part for part in self.parts(text) if isinstance(part, str)]
        return not any(mark in part for part in known for mark in ("\ue000", "\ue001"))

    def parts(self, text: str) -> tuple[Part, ...]:
        """`text` cut at its symbols. No part is empty."""
        found: list[Part] = []
        end = 0
        for match in re.finditer(f"\ue000{self.nonce}\\.(\\d+)(?:{{}})?\ue001", text):
            found += [text[end : match.start()], self._known[int(match[1])]]
            end = match.end()
        return tuple(part for part in (*found, text[end:]) if part != "")


def reads(parts: tuple[Part, ...]) -> frozenset[Index]:
    """What `parts` read: the calls' numbers, and what is given."""
    return frozenset(part.index for part in parts if isinstance(part, PlannedAnswer))


def filled(parts: tuple[Part, ...], answers: Mapping[Index, Any]) -> str:
    """The text of `parts`, given the known answers. Raises TransformFailed."""
    return "".join(part if isinstance(part, str) else part.of(answers) for part in parts)
