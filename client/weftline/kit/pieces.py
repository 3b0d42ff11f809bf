"""Prompts in pieces: constant text, and values under the names that the application gives them.

The pieces of a text always add up to exactly that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

# A value of at least this many characters is also found inside a longer word.
MIN_DISTINCT = 8
MAX_SEARCHES = 64 << 20  # characters searched for the values of one text: about 10 ms of work


class Piece(NamedTuple):  # each call makes several; making a frozen dataclass takes 1 µs
    """A segment of a message. `from_var` is the variable of an earlier call that has `text`.

    With an empty `text` it says that the tool calls of the message came from that variable.
    """

    text: str
    name: str | None = None
    from_var: str | None = None

    def to_wire(self) -> dict[str, str]:
        """This piece as JSON data, without the fields that are None."""
        fields = {"text": self.text, "name": self.name, "from_var": self.from_var}
        return {key: value for key, value in fields.items() if value is not None}


Pieces = tuple[Piece, ...]


def text_of(pieces: Iterable[Piece]) -> str:
    """The text that the pieces add up to."""
    return "".join(piece.text for piece in pieces)


def is_constant(pieces: Pieces) -> bool:
    """Whether no piece is a value of the application."""
    return all(piece.name is None and piece.from_var is None for piece in pieces)


def names_any(messages: Iterable[Pieces | None]) -> bool:
    """Whether a piece of `messages` is a named value."""
    return any(piece.name for found in messages if found for piece in found)


def to_wire(messages: Sequence[Pieces | None]) -> list[list[dict[str, str]] | None]:
    """The pieces of each message as JSON data; None for a message that is one constant."""
    return [
        None
        if found is None or is_constant(found)
        else [piece.to_wire() for piece in found if piece.text or piece.from_var]
        for found in messages
    ]


def by_search(text: str, values: Iterable[tuple[str, str]], shortest: int) -> Pieces:
    """Cut `text` at the named `values` in it. Longer values are searched first.

    A value is not searched for inside another one that was found.

    Values with fewer than `shortest` characters are not searched for, because they also occur by
    chance.
    """
    spans: list[tuple[int, int, str]] = []
    budget = MAX_SEARCHES
    for name, value in sorted(values, key=lambda item: -len(item[1])):
        if len(value) < shortest or budget < 0:
            break
        budget -= len(text)
        for start in _occurrences(text, value):
            end = start + len(value)
            if all(end <= s or e <= start for s, e, _ in spans):
                spans.append((start, end, name))
    return tuple(_cut(text, spans))


def _cut(text: str, spans: list[tuple[int, int, str]]) -> Iterator[Piece]:
    at = 0
    for start, end, name in sorted(spans):
        if start > at:
            yield Piece(text[at:start])
        yield Piece(text[start:end], as_name(name))
        at = end
    if at < len(text) or not text:
        yield Piece(text[at:])


def _occurrences(text: str, value: str) -> Iterator[int]:
    """The positions of `value` in `text`. A short value counts only as a whole word."""
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        inside_word = (start > 0 and text[start - 1].isalnum() and value[0].isalnum()) or (
            end < len(text) and text[end].isalnum() and value[-1].isalnum()
        )
        if len(value) >= MIN_DISTINCT or not inside_word:
            yield start
        start = text.find(value, end)


@lru_cache(maxsize=4096)
def as_name(path: str) -> str:
    """A placeholder's name for a variable or a path: ASCII letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", path)[:64]
    return name if name[:1].isalpha() or name[:1] == "_" else f"value_{name}".rstrip("_")
