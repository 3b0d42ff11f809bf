"""Prompts in pieces: the template's own text, and each argument's under its name.

Pieces always add up to the text that they are of: an account of a prompt that does not is dropped.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llama_index.core.prompts.base import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    SelectorPromptTemplate,
)

# Shorter values are found in texts where they do not stand.
MIN_SEARCHED = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message; `from_var` is the variable of an earlier call that holds `text`."""

    text: str
    name: str | None = None
    from_var: str | None = None

    def to_wire(self) -> dict[str, str]:
        """JSON data without what is not said."""
        said = {"text": self.text, "name": self.name, "from_var": self.from_var}
        return {key: value for key, value in said.items() if value is not None}


Pieces = tuple[Piece, ...]


def by_template(
    llm: Any, prompt: BasePromptTemplate, arguments: Mapping[str, Any], texts: Sequence[str]
) -> list[Pieces] | None:
    """The pieces of each message that `prompt` made; None unless they are `texts` to the letter.

    The template is rendered once more with marks around its arguments. Functions that a template
    maps its variables by are the user's code, which is not run again.
    """
    if not _is_plain(llm, prompt):
        return None
    given = {**prompt.kwargs, **arguments}
    mark = secrets.token_hex(8)
    marked = {
        name: f"\ue000{mark}{name}\ue001{value}\ue002{mark}\ue003"
        for name, value in given.items()
        if isinstance(value, str)
    }
    try:
        if llm.metadata.is_chat_model:
            made = llm._get_messages(prompt, **{**arguments, **marked})
            rendered = [message.content or "" for message in made]
        else:
            rendered = [llm._get_prompt(prompt, **{**arguments, **marked})]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None  # what LlamaIndex made of it stands
    # An argument may hold another's mark, where one template was rendered into the next.
    pattern = re.compile(f"\ue000{mark}([^\ue000-\ue003]+)\ue001(.*?)\ue002{mark}\ue003", re.DOTALL)
    found = [_cut(text, pattern) for text in rendered]
    return found if [text_of(pieces) for pieces in found] == list(texts) else None


def _is_plain(llm: Any, prompt: BasePromptTemplate) -> bool:
    if type(prompt) is SelectorPromptTemplate:
        prompt = prompt.select(llm)
    known = type(prompt) in (PromptTemplate, ChatPromptTemplate)
    return known and not prompt.function_mappings and llm.messages_to_prompt is not None


def _cut(text: str, pattern: re.Pattern[str]) -> Pieces:
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [Piece(text[end : match.start()]), Piece(match[2], as_name(match[1]))]
        end = match.end()
    pieces.append(Piece(text[end:]))
    return tuple(piece for piece in pieces if piece.text)


def by_search(text: str, values: Iterable[tuple[str, str]]) -> Pieces:
    """`text` with the values that stand in it, the longest first, none inside another."""
    pieces: Pieces = (Piece(text),)
    for name, value in sorted(values, key=lambda item: -len(item[1])):
        if len(value) >= MIN_SEARCHED:
            split = (_around(piece, name, value) for piece in pieces)
            pieces = tuple(chain.from_iterable(split))
    return pieces


def _around(piece: Piece, name: str, value: str) -> Iterable[Piece]:
    if piece.name is not None or value not in piece.text:
        return (piece,)
    before, _, after = piece.text.partition(value)
    rest = _around(Piece(after), name, value) if after else ()
    return (*((Piece(before),) if before else ()), Piece(value, as_name(name)), *rest)


def text_of(pieces: Iterable[Piece]) -> str:
    """What the pieces add up to."""
    return "".join(piece.text for piece in pieces)


def as_name(name: str) -> str:
    """A placeholder's name for a template's variable: plain letters, digits and underscores."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name)[:64]
    return plain if plain[:1].isalpha() or plain[:1] == "_" else f"value_{plain}"
