"""Finds where values stand in a mustache template's text: renders it with marks around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.prompts import BasePromptTemplate

from langchain_weftline.symbols import Slot

# Code points that no text has a use for: a value's name begins, the value begins, the value ends.
_NAME, _VALUE, _END = "\ue5f0", "\ue5f1", "\ue5f2"


def mustache(
    template: BasePromptTemplate[Any], values: Mapping[str, Any], text: str
) -> tuple[str | Slot, ...]:
    """`text`, which `template` made of `values`, with its seams; whole where they are not sure."""
    if any(mark in text for mark in (_NAME, _VALUE, _END)):
        return (text,)
    marked = str(template.format(**{name: _mark(value, name) for name, value in values.items()}))
    parts = tuple(_parts(marked))
    same = "".join(_text(part) for part in parts) == text
    return parts if same else (text,)


def _mark(value: Any, path: str) -> Any:
    if isinstance(value, str):
        # An empty string hides a section, and must go on doing so.
        return f"{_NAME}{path}{_VALUE}{value}{_END}" if value else value
    if type(value) is dict:
        return {key: _mark(item, f"{path}.{key}") for key, item in value.items()}
    return [_mark(item, path) for item in value] if type(value) is list else value


def _parts(marked: str) -> Iterator[str | Slot]:
    """Constants and slots."""
    constant, *rest = marked.split(_NAME)
    if constant:
        yield constant
    for item in rest:
        name, _, shown = item.partition(_VALUE)
        value, _, constant = shown.partition(_END)
        yield Slot(name, (value,))
        if constant:
            yield constant


def _text(part: str | Slot) -> str:
    return part if isinstance(part, str) else "".join(map(str, part.pieces))
