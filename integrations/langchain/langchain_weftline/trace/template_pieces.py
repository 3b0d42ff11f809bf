"""The pieces of LangChain's prompts: found by rendering a template again, part by part.

Where the template is not known, the values of the run's input are searched for in the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from pydantic import BaseModel

from langchain_weftline.lower.prompt_templates import is_plain, render
from langchain_weftline.lower.symbols import CannotCompile, Prompt, Slot
from weftline.kit import Piece, Pieces
from weftline.kit.pieces import as_name, by_search, text_of

# Shorter values are not searched for, because they also occur in texts by chance.
MIN_SEARCHED = 3
MAX_DEPTH = 4
MAX_VALUES = 256


def by_template(
    template: BasePromptTemplate[Any], values: Mapping[str, Any], texts: Sequence[str]
) -> list[Pieces] | None:
    """The pieces of each message that `template` made; None unless they add up to `texts`.

    No code of the user runs: the result is None if a value's class could format itself.
    """
    if not all(is_plain(value) for value in values.values()):
        return None
    try:
        prompt = render(template, values)
    except (CannotCompile, KeyError, ValueError, TypeError):
        return None  # LangChain has rendered it, but this rendering failed
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


def by_input(text: str, inputs: Any) -> Pieces:
    """The pieces of `text` that are strings of a run's input."""
    return by_search(text, list(strings_in(inputs))[:MAX_VALUES], MIN_SEARCHED)


def strings_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The strings inside a run's input, each with its path, such as `docs` or `user.name`."""
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
