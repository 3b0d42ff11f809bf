"""The segments of a prompt template: its constant texts and its variables, in order.

The segments are read from the template. No value is needed, and no code of the user runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from string import Formatter
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)

from langchain_weftline.lower.prompt_templates import (
    calls_user_code,
    few_shot,
    messages_as_turns,
    role_of,
)
from langchain_weftline.lower.symbols import CannotCompile

# A tag of a mustache template: a name, with & or three braces if it is not escaped, or another sign
# for a section, a comment or a partial.
_TAG = re.compile(r"\{\{\{\s*([\w.]+)\s*\}\}\}|\{\{&?\s*([\w.]+)\s*\}\}|(\{\{)")


class TemplateSegment(NamedTuple):
    """A constant text, whose `name` is None, or the variable `name`, whose `text` is empty.

    `message` counts from 0. `role` is the server's name for it.
    """

    message: int
    role: str
    name: str | None
    text: str


# A piece of a template: a constant text, a variable in a tuple of one, or None where only a run
# knows what follows.
_Piece = str | tuple[str] | None
_Constants = Mapping[str, str]


def segments_of(template: Any) -> list[TemplateSegment]:
    """The segments of `template`, up to the first that only a run knows, such as a history.

    Constant texts beside each other are one segment.
    """
    found: list[TemplateSegment] = []
    with suppress(KeyError, ValueError):  # of an example without a value: the run raises it, too
        for message, role, piece in _messages(template):
            if piece is None:
                break
            if isinstance(piece, tuple):
                found.append(TemplateSegment(message, role, piece[0], ""))
            elif found and (found[-1].message, found[-1].name) == (message, None):
                found[-1] = found[-1]._replace(text=found[-1].text + piece)
            elif piece:
                found.append(TemplateSegment(message, role, None, piece))
    return found


def _messages(template: Any) -> Iterator[tuple[int, str, _Piece]]:
    """The pieces of a template, each with the number and the role of its message."""
    if type(template) is not ChatPromptTemplate:
        yield from ((0, "user", piece) for piece in _text(template, {}))
        return
    for number, (role, pieces) in enumerate(_parts(template, {})):
        yield from ((number, role, piece) for piece in pieces)


def _parts(template: ChatPromptTemplate, given: _Constants) -> Iterator[tuple[str, list[_Piece]]]:
    """The messages of a chat template: the role and the pieces of each."""
    constants = {**_constants(template), **given}
    parts: list[Any] = template.messages
    for part in parts:
        role = role_of(part)
        if type(part) is ChatPromptTemplate:
            yield from _parts(part, constants)
        elif role is not None and not isinstance(part.prompt, list):
            yield role, list(_text(part.prompt, constants))
        else:
            yield from _fixed(part)


def _fixed(part: Any) -> Iterator[tuple[str, list[_Piece]]]:
    """Messages without a variable: messages of the program, and examples."""
    messages: list[Any] | None = None
    if isinstance(part, BaseMessage):
        messages = [part]
    elif type(part) is FewShotChatMessagePromptTemplate and not calls_user_code(part):
        messages = part.format_messages() if part.examples else None
    try:
        for turn in messages_as_turns(messages or [], part):
            yield turn.role, ["".join(map(str, turn.pieces()))]
    except CannotCompile:
        messages = None
    if messages is None:
        yield "user", [None]


def _text(template: Any, given: _Constants) -> Iterator[_Piece]:
    """The pieces of a string template."""
    constants = {**_constants(template), **given}
    form = getattr(template, "template_format", None)
    if type(template) is PromptTemplate and form == "mustache":
        pieces = _mustache(template.template)
    elif type(template) is PromptTemplate and form == "f-string":
        pieces = _f_string(template.template)
    elif type(template) is FewShotPromptTemplate and form == "f-string" and template.examples:
        known = not calls_user_code(template.example_prompt)
        pieces = _f_string(few_shot(template, {})) if known else iter((None,))
    else:
        pieces = iter((None,))
    for piece in pieces:
        yield constants.get(piece[0], piece) if isinstance(piece, tuple) else piece


def _constants(template: Any) -> dict[str, str]:
    """The partial variables that are texts. A function is called in each run, so it is none."""
    given = template.partial_variables.items()
    return {name: value for name, value in given if type(value) is str}


def _f_string(text: str) -> Iterator[_Piece]:
    for constant, name, _, _ in Formatter().parse(text):
        yield constant
        if name is not None:
            yield (name,)


def _mustache(text: str) -> Iterator[_Piece]:
    at = 0
    for tag in _TAG.finditer(text):
        yield text[at : tag.start()]
        name = tag[1] or tag[2]
        yield (name,) if name else None
        at = tag.end()
    yield text[at:]
