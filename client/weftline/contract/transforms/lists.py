"""Transforms of a text into its items: by commas, numbers, bullets or lines."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.transforms.base import (
    MAX_CHOICES,
    Transform,
    ValueFlow,
    as_text,
    check_text,
    refuse,
)

MAX_QUERY_CHARS = 1 << 16


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


@dataclass(frozen=True, slots=True)
class QueryList(Transform):
    """The queries in a text's lines: the first `most` of them, stripped (QueryFusionRetriever).

    `first` is a query that stands before them. A query that equals an earlier one is left out.
    """

    op: ClassVar[str] = "query_list"
    flow: ClassVar[ValueFlow] = ValueFlow.ITEMS
    most: int
    first: str | None = None

    def __post_init__(self) -> None:
        if type(self.most) is not int or not 1 <= self.most <= MAX_CHOICES:
            refuse(f"query_list takes 'most', 1 to {MAX_CHOICES}")
        if self.first is not None:
            check_text(self.first, "'first' of query_list", MAX_QUERY_CHARS)

    def apply(self, value: Any) -> Any:
        lines = (line.strip() for line in as_text(value, self.op).strip("`").split("\n"))
        queries = [line for line in lines if line][: self.most]
        return list(dict.fromkeys(queries if self.first is None else [self.first, *queries]))

    def closed(self, text: str) -> list[Any]:
        """The queries in lines that have ended."""
        return list(self.apply(_ended_lines(text)))


def _ended_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]
