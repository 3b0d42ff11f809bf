"""The prompt of a call as a list of segments: its texts, and where in the template each stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline.contract.tools import Tool, ToolCall
from weftline_server.prompt.render import turns_of, value_text
from weftline_server.session.variable import SessionVariable

# The name of an input that has a variable and no name in a template: http/openai/provenance.py.
UNNAMED = "text"

Variables = Mapping[str, SessionVariable]
Template = tuple[str | None, ...]


class Place(NamedTuple):
    """Where a segment stands. `message` counts from 0, and is None in a prompt without messages.

    `name` is the template's name for the segment, None for constant text and for messages that are
    no part of a template.
    """

    message: int | None
    role: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of a prompt before its first output, and the tools that it offers."""

    texts: tuple[str, ...]
    tools: tuple[Tool, ...]

    @property
    def chars(self) -> int:
        return sum(map(len, self.texts))


def prompt_of(call: Call, variables: Variables) -> PromptTexts:
    """The prompt of a call that has run, so that its inputs have values.

    The texts are those before the transforms of inputs: two of them are equal where those in the
    prompt are.
    """
    holders = {holder.name: holder for holder in call.placeholders}
    texts: list[str] = []
    for item in call.prompt:
        if isinstance(item, Message):
            for segment in item.content:
                if segment.output is not None:
                    return PromptTexts(tuple(texts), call.offered_tools)
                text = segment.text
                texts.append(_value(segment, holders, variables) if text is None else text)
            if item.tool_calls:
                texts.append(_said(item.tool_calls))
        elif isinstance(item, Segment):
            if item.output is not None:
                break
            if item.text is not None:
                texts.append(item.text)
            elif is_chat(call):
                texts += _messages(_value(item, holders, variables), item.input or "")
            else:
                texts.append(_value(item, holders, variables))
    return PromptTexts(tuple(texts), call.offered_tools)


def places_of(call: Call, variables: Variables) -> list[Place]:
    """The place of each text of `prompt_of`, in the same order."""
    holders = {holder.name: holder for holder in call.placeholders}
    places: list[Place] = []
    message = 0
    for item in call.prompt:
        if isinstance(item, Message):
            for segment in item.content:
                if segment.output is not None:
                    return places
                places.append(Place(message, item.role, _name(segment, holders)))
            if item.tool_calls:
                places.append(Place(message, item.role, None))
            message += 1
        elif isinstance(item, Segment):
            if item.output is not None:
                break
            if item.text is None and is_chat(call):
                for turn in turns_of(_value(item, holders, variables), item.input or ""):
                    places.append(Place(message, turn.role, None))
                    message += 1
            else:
                places.append(Place(None, None, _name(item, holders)))
    return places


def template_of(call: Call) -> Template | None:
    """What the prompts of one template have in common: constant texts and names, in order.

    None for a prompt without named inputs, which is no template but a conversation.
    """
    if not any(one.in_out is InOut.IN and _is_named(one) for one in call.placeholders):
        return None
    found: list[str | None] = []
    for item in call.prompt:
        if isinstance(item, Message):
            found.append(item.role)
            for segment in item.content:
                found += (segment.text, segment.input)
        elif isinstance(item, Segment):
            found += (item.text, item.input)
    return tuple(found)


def begins_of(call: Call) -> str:
    """The text of a template up to its first output, with `{name}` where an input stands."""
    texts = []
    for segment in call.segments():
        if segment.output is not None:
            break
        texts.append(f"{{{segment.input}}}" if segment.text is None else segment.text)
    return "".join(texts)


def _is_named(holder: Placeholder) -> bool:
    """Whether the template has a name for this input. The text of an earlier answer that stands in
    a conversation has none of its own."""
    return holder.from_var is None or holder.name.partition("_")[0] != UNNAMED


def is_chat(call: Call) -> bool:
    """Whether the prompt has messages; a bare input then stands for whole messages."""
    return any(isinstance(item, Message) for item in call.prompt)


def _name(segment: Segment, holders: Mapping[str, Placeholder]) -> str | None:
    if segment.input is None or not _is_named(holders[segment.input]):
        return None
    return segment.input


def _value(segment: Segment, holders: Mapping[str, Placeholder], variables: Variables) -> str:
    holder = holders[segment.input or ""]
    if holder.semantic_var_id is None:
        return value_text(holder.value)
    variable = variables[holder.semantic_var_id]
    return variable.text or value_text(variable.value)


def _messages(value: str, name: str) -> list[str]:
    """The texts of an input that stands for whole messages, one for each."""
    return [turn.content or _said(turn.tool_calls) for turn in turns_of(value, name)]


def _said(calls: tuple[ToolCall, ...]) -> str:
    return "\n".join([f"{one.function.name}({one.function.arguments})" for one in calls])
