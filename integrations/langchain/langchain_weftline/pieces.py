"""Texts in pieces: constant text, and values under the names that they have in the application.

Pieces always add up to the text that they are of. They are found by rendering a template once more
by its parts or, where the template is not known, by looking for the values in the text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from pydantic import BaseModel

from langchain_weftline.plain import is_plain
from langchain_weftline.prompts import render
from langchain_weftline.symbols import CannotCompile, Prompt, Slot

# Shorter values are found in texts where they do not stand.
MIN_SEARCHED = 3
# From this length on a value is not taken for a part of a word by chance.
MIN_DISTINCT = 8
MAX_DEPTH = 4
MAX_VALUES = 256
MAX_SEARCHES = 64 << 20  # characters looked at for one text: some 10 ms


class Piece(NamedTuple):  # a frozen dataclass takes 1 µs to make, of which a call has several
    """A part of a message; `from_var` is the variable of an earlier call that holds `text`."""

    text: str
    name: str | None = None
    from_var: str | None = None

    def to_wire(self) -> dict[str, str]:
        fields = {"text": self.text, "name": self.name, "from_var": self.from_var}
        return {key: value for key, value in fields.items() if value is not None}


Pieces = tuple[Piece, ...]


def by_template(
    template: BasePromptTemplate[Any], values: Mapping[str, Any], texts: Sequence[str]
) -> list[Pieces] | None:
    """The pieces of each message that `template` made; None unless they are `texts` to the letter.

    Nothing of the user's runs: values whose class decides how they look are left to a search.
    """
    if not all(is_plain(value) for value in values.values()):
        return None
    try:
        prompt = render(template, values)
    except (CannotCompile, KeyError, ValueError, TypeError):
        return None  # LangChain made a text of it all the same
    found = [tuple(_of_turn(turn)) for turn in _turns(prompt)]
    return found if [text_of(pieces) for pieces in found] == list(texts) else None


def _turns(prompt: Prompt) -> Iterator[tuple[str | Slot, ...]]:
    return (turn.content for turn in prompt.turns)


def _of_turn(content: Iterable[str | Slot]) -> Iterator[Piece]:
    for part in content:
        if isinstance(part, str):
            yield Piece(part)
        elif text := "".join(map(str, part.pieces)):
            yield Piece(text, as_name(part.name))


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def by_search(text: str, values: Iterable[tuple[str, str]]) -> Pieces:
    """`text` with the values that stand in it, the longest first, none inside another."""
    spans: list[tuple[int, int, str]] = []
    budget = MAX_SEARCHES
    for name, value in sorted(values, key=lambda item: -len(item[1])):
        if len(value) < MIN_SEARCHED or budget < 0:
            break
        budget -= len(text)
        for start in _places(text, value):
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


def _places(text: str, value: str) -> Iterator[int]:
    """Where `value` stands in `text`; a short one only as whole words."""
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        inside_word = (start > 0 and text[start - 1].isalnum() and value[0].isalnum()) or (
            end < len(text) and text[end].isalnum() and value[-1].isalnum()
        )
        if len(value) >= MIN_DISTINCT or not inside_word:
            yield start
        start = text.find(value, end)


def strings_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The strings inside a run's input by where they stand: `docs`, `user.name`."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, str):
        yield path or "input", value
    elif isinstance(value, BaseMessage):
        yield path or "message", str(value.text)
    elif isinstance(value, Document):
        yield path or "document", value.page_content
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings_in(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item, path, depth + 1)
    elif isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        yield from strings_in(getattr(value, "__dict__", None), path, depth)


@lru_cache(maxsize=4096)
def as_name(path: str) -> str:
    """A placeholder's name for a variable or a path: plain letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", path)[:64]
    return name if name[:1].isalpha() or name[:1] == "_" else f"value_{name}".rstrip("_")
