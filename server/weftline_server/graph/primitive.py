"""Primitives: what calls are lowered to, and what engines execute.

A call with outputs y1 … yk is k Generate primitives in a row. Primitive i needs the text before its
output: constants, inputs and the outputs before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weftline.protocol import Call, Message, Placeholder, Segment


@dataclass(frozen=True, slots=True)
class PrimitiveId:
    """Output number `index` of a call of a session."""

    session: str
    call: str
    index: int

    def __str__(self) -> str:
        return f"{self.session}/{self.call}/{self.index}"


@dataclass(frozen=True, slots=True)
class PromptBefore:
    """What stands before one output: text, or where there are `messages`, those."""

    text: str
    messages: tuple[tuple[str, str], ...] | None = None  # (role, content)


def segments_before(call: Call, output: str) -> tuple[Segment, ...]:
    """The segments of the prompt before `output`, messages flattened."""
    found: list[Segment] = []
    for segment in call.segments():
        if segment.output == output:
            return tuple(found)
        found.append(segment)
    raise AssertionError(f"output {output!r} does not stand in the prompt of {call.name!r}")


def value_text(value: Any) -> str:
    """How a value enters a prompt: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def render(call: Call, output: Placeholder, texts: Mapping[str, str]) -> PromptBefore:
    """The prompt before `output`, with `texts` for the placeholders that stand in it."""

    def text_of(segment: Segment) -> str:
        if segment.text is not None:
            return segment.text
        return texts[segment.input or segment.output or ""]

    assert not isinstance(call.prompt, str), "template text is parsed when it arrives"
    messages: list[tuple[str, str]] = []
    text: list[str] = []
    for item in call.prompt:
        if isinstance(item, Message):
            if any(s.output == output.name for s in item.content):
                break
            messages.append((item.role, "".join(map(text_of, item.content))))
        elif item.output == output.name:
            break
        else:
            text.append(text_of(item))
    chat = isinstance(call.prompt[0], Message)
    return PromptBefore("".join(text), tuple(messages) if chat else None)
