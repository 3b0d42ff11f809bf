"""Transforms of a text into one of a few values: a truth value, a choice, a date, or nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    MAX_CHOICES,
    MAX_PARSED_CHARS,
    Transform,
    as_text,
    check_text,
    check_texts,
    refuse,
)

_SPECIAL = frozenset(".^$*+?{}[]\\|()")


@dataclass(frozen=True, slots=True)
class Boolean(Transform):
    """Whether `true_val` or `false_val` occurs in the text as a word (BooleanOutputParser)."""

    op: ClassVar[str] = "boolean"
    true_val: str = "YES"
    false_val: str = "NO"

    def __post_init__(self) -> None:
        for name, word in (("true_val", self.true_val), ("false_val", self.false_val)):
            check_text(word, f"boolean's {name!r}")
            # LangChain puts the words into a pattern without escaping them.
            if _SPECIAL & set(word):
                refuse(
                    f"boolean's {name!r} {word[:40]!r} is a pattern, not a word: leave the parser "
                    "to the client"
                )

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op, MAX_PARSED_CHARS)
        words = re.findall(rf"\b({self.true_val}|{self.false_val})\b", text, re.IGNORECASE)
        found = {word.upper() for word in words}
        yes, no = self.true_val.upper() in found, self.false_val.upper() in found
        if yes and no:
            raise TransformFailed(
                f"Ambiguous response. Both {self.true_val} and {self.false_val} "
                f"in received: {text}."
            )
        if not yes and not no:
            raise TransformFailed(
                "BooleanOutputParser expected output value to include either "
                f"{self.true_val} or {self.false_val}. Received {text}."
            )
        return yes


@dataclass(frozen=True, slots=True)
class Choice(Transform):
    """The one of `values` that equals the text (EnumOutputParser gives that value's member)."""

    op: ClassVar[str] = "enum"
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        check_texts(self.values, "enum's 'values'", MAX_CHOICES)

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        if (chosen := text.strip()) in self.values:
            return chosen
        expected = list(
            dict.fromkeys(self.values)
        )  # LangChain's message leaves out an enum's aliases
        raise TransformFailed(f"Response '{text}' is not one of the expected values: {expected}")


_DIRECTIVES = frozenset("aAbBdfGHIjmMpSuUVwWyYz%")


@dataclass(frozen=True, slots=True)
class Datetime(Transform):
    """The text as a date in `format` (DatetimeOutputParser), shown as str shows a datetime.

    `datetime.fromisoformat` reads it again. Names of months and days are English.
    """

    op: ClassVar[str] = "datetime"
    format: str = "%Y-%m-%dT%H:%M:%S.%fZ"

    def __post_init__(self) -> None:
        check_text(self.format, "datetime's 'format'", 256)
        directives = re.findall("%(.?)", self.format, re.DOTALL)
        for letter in directives:
            if letter in ("Z", "c", "x", "X"):
                refuse(
                    f"datetime's %{letter} depends on where it is read: leave the parser to the "
                    "client"
                )
            if letter not in _DIRECTIVES or not letter:
                refuse(f"datetime's format has %{letter}, which is no directive")
        used = [letter for letter in directives if letter != "%"]
        if len(used) != len(set(used)):
            refuse("datetime's format has a directive twice")

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op, MAX_PARSED_CHARS)
        try:
            return str(datetime.strptime(text.strip(), self.format))
        except ValueError as error:
            raise TransformFailed(f"Could not parse datetime string: {text}") from error


@dataclass(frozen=True, slots=True)
class NoOutput(Transform):
    """The text without surrounding white space, or an empty text if it equals `no_output_str`.

    The transform is the NoOutputParser of LangChain's extracting compressor.
    """

    op: ClassVar[str] = "no_output"
    no_output_str: str = "NO_OUTPUT"

    def __post_init__(self) -> None:
        check_text(self.no_output_str, "no_output's 'no_output_str'")

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op).strip()
        return "" if text == self.no_output_str else text


@dataclass(frozen=True, slots=True)
class FinishedAnswer(Transform):
    """The text without `finished_value`, and whether it contained that (FinishedOutputParser)."""

    op: ClassVar[str] = "finished"
    finished_value: str = "FINISHED"

    def __post_init__(self) -> None:
        check_text(self.finished_value, "finished's 'finished_value'")

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op).strip()
        return [text.replace(self.finished_value, ""), self.finished_value in text]
