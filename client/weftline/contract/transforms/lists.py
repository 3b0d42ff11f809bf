"""Transforms of a text into its items: by commas, numbers, bullets or lines."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.transforms.base import Transform, ValueFlow, as_text


@dataclass(frozen=True, slots=True)
class CommaList(Transform):
    """The items of comma-separated text, with CSV's quotes (CommaSeparatedListOutputParser)."""

    op: ClassVar[str] = "comma_list"
    flow: ClassVar[ValueFlow] = ValueFlow.ITEMS

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        try:
            rows = csv.reader(io.StringIO(text), skipinitialspace=True)
            return [item for row in rows for item in row]
        except csv.Error:  # for example a field of more than csv.field_size_limit() characters
            return [item.strip() for item in text.split(",")]

    def closed(self, text: str) -> list[Any]:
        """All items but the last, which may continue."""
        return list(self.apply(text))[:-1]


# These patterns find the same items as LangChain's, but take linear time on long runs of digits or
# newlines, because a match can start only at the start of such a run or of a line.
_NUMBERED = re.compile(r"(?<!\d)\d+\.\s([^\n]+)")
_BULLETED = re.compile(r"^[^\S\n]*[-*]\s([^\n]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NumberedList(Transform):
    """The items after '1. ', '2. ' ... (NumberedListOutputParser)."""

    op: ClassVar[str] = "numbered_list"
    flow: ClassVar[ValueFlow] = ValueFlow.ITEMS

    def apply(self, value: Any) -> Any:
        return _NUMBERED.findall(as_text(value, self.op))

    def closed(self, text: str) -> list[Any]:
        """The items in lines that have ended."""
        return list(self.apply(_ended_lines(text)))


@dataclass(frozen=True, slots=True)
class MarkdownList(Transform):
    """The items after '- ' or '* ' at the start of a line (MarkdownListOutputParser)."""

    op: ClassVar[str] = "markdown_list"
    flow: ClassVar[ValueFlow] = ValueFlow.ITEMS

    def apply(self, value: Any) -> Any:
        return _BULLETED.findall(as_text(value, self.op))

    def closed(self, text: str) -> list[Any]:
        """The items in lines that have ended."""
        return list(self.apply(_ended_lines(text)))


@dataclass(frozen=True, slots=True)
class LineList(Transform):
    """The lines that are not empty (MultiQueryRetriever's LineListOutputParser)."""

    op: ClassVar[str] = "line_list"
    flow: ClassVar[ValueFlow] = ValueFlow.ITEMS

    def apply(self, value: Any) -> Any:
        return [line for line in as_text(value, self.op).strip().split("\n") if line]

    def closed(self, text: str) -> list[Any]:
        """All lines but the last, whose end may still be cut off as white space."""
        return [line for line in text.strip().split("\n")[:-1] if line]


def _ended_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]
