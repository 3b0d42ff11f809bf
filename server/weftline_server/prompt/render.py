"""Renders a call's prompt before one output, as messages or text, from segments and values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any

from weftline.contract.calls import TemplateWord
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call, Message, Placeholder, Segment
from weftline.contract.tools import CalledFunction, Tool, ToolCall, ToolChoice
from weftline.contract.vectors import as_json
from weftline_engine.api.record import short_record


@short_record
class RenderedMessage:
    """A chat message whose content is rendered text. `thoughts` are those of the assistant.

    `seams` are the numbers of characters of the content behind which an input begins or ends.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    thoughts: str = ""
    seams: tuple[int, ...] = ()


@short_record
class ToolOffer:
    """What a request says of tools. With the choice none, the prompt has none of the tools."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = None
    parallel: bool | None = None


NO_OFFER = ToolOffer()


@short_record
class PromptBefore:
    """The prompt before one output: `text`, or if there are `messages`, these and the tools.

    `seams` are those of the text. `words` are further variables of the chat template. `begun` is
    the beginning of the message that the output continues. `tokens` are those of the text, if the
    client has sent tokens. An engine that renders chats itself gets the `offer` of the request.
    """

    text: str
    messages: tuple[RenderedMessage, ...] | None = None
    tools: tuple[Tool, ...] = ()
    words: Mapping[str, TemplateWord] = field(default_factory=dict)
    begun: str = ""
    tokens: tuple[int, ...] = ()
    offer: ToolOffer = NO_OFFER
    seams: tuple[int, ...] = ()

    @property
    def chars(self) -> int:
        """About its length in characters: tools, calls of tools and turns are text too."""
        turns = sum(_turn_chars(turn) for turn in self.messages or ())
        return len(self.text) + len(self.begun) + turns + sum(map(_tool_chars, self.tools))


# What a chat template writes around a turn, and about the length of a tool with its schema.
_TURN_CHARS = 20
_TOOL_CHARS = 500


def _turn_chars(turn: RenderedMessage) -> int:
    calls = sum(len(c.function.name) + len(c.function.arguments) for c in turn.tool_calls)
    return _TURN_CHARS + len(turn.content or "") + len(turn.thoughts) + calls


def _tool_chars(tool: Tool) -> int:
    return _TOOL_CHARS + len(tool.function.description or "")


def value_text(value: Any) -> str:
    """Return a value as it enters a prompt: text unchanged, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=as_json)


def render(call: Call, output: Placeholder, texts: Mapping[str, str]) -> PromptBefore:
    """Return the prompt before `output`, with `texts` in place of the placeholders before it.

    Raises InvalidRequest if an input that stands among messages is not messages itself.
    """

    def text_of(segment: Segment) -> str:
        if segment.text is not None:
            return segment.text
        return texts[segment.input or segment.output or ""]

    assert not isinstance(call.prompt, str), "template text is parsed when it arrives"
    chat = Message in map(type, call.prompt)
    turns: list[RenderedMessage] = []
    text: list[str] = []
    segments: list[Segment] = []
    tokens: tuple[int, ...] = ()
    begun = ""
    for item in call.prompt:
        if isinstance(item, Message):
            if any(s.output == output.name for s in item.content):
                begun = "".join(map(text_of, item.content[:-1]))
                break
            content = "".join(map(text_of, item.content))
            turns.append(
                RenderedMessage(
                    item.role,
                    content,
                    item.name,
                    item.tool_calls,
                    item.tool_call_id,
                    item.reasoning_content or "",
                    _seams(item.content, text_of),
                )
            )
        elif item.output == output.name:
            break
        elif chat:
            turns += turns_of(text_of(item), item.input or "")
        else:
            text.append(text_of(item))
            segments.append(item)
            tokens = item.tokens
    messages = tuple(turns) if chat else None
    return PromptBefore(
        "".join(text),
        messages,
        call.offered_tools,
        call.chat_template_kwargs or {},
        begun,
        tokens,
        ToolOffer(call.tools, call.tool_choice, call.parallel_tool_calls),
        _seams(segments, text_of),
    )


def _seams(segments: Sequence[Segment], text_of: Callable[[Segment], str]) -> tuple[int, ...]:
    """Where the template's own text meets that of an input, in characters."""
    if len(segments) < 2:
        return ()
    return tuple(accumulate(len(text_of(segment)) for segment in segments[:-1]))


def turns_of(text: str, param: str) -> list[RenderedMessage]:
    """Return the messages in `text`: one message or a list as JSON, else one user message.

    Raises InvalidRequest for JSON that is not a message.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, str):
        return [RenderedMessage("user", value)]
    return [_turn(one, param) for one in (value if isinstance(value, list) else [value])]


def _turn(value: Any, param: str) -> RenderedMessage:
    match value:
        case {"role": "system" | "user" | "assistant" | "tool" | "developer" as role}:
            pass
        case _:
            raise InvalidRequest(
                f"input {param!r} stands among messages, so it must be a message or a list of "
                "messages: objects with a role and a content",
                param=param,
            )
    content, name, answers = (value.get(key) for key in ("content", "name", "tool_call_id"))
    return RenderedMessage(
        role,
        _content_text(content, param),
        name if isinstance(name, str) else None,
        tuple(_tool_call(one, param) for one in _calls_of(value, param)),
        answers if isinstance(answers, str) else None,
        _thoughts_of(value, role, param),
    )


def _thoughts_of(message: dict[str, Any], role: str, param: str) -> str:
    thoughts = message.get("reasoning_content")
    if thoughts is None or (isinstance(thoughts, str) and role == "assistant"):
        return thoughts or ""
    raise InvalidRequest(
        f"a message of input {param!r} has reasoning_content that is no text of the assistant",
        param=param,
    )


def _content_text(content: Any, param: str) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case [*parts] if all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
            return "".join(part["text"] for part in parts)
    raise InvalidRequest(f"a message of input {param!r} has content that is not text", param=param)


def _calls_of(message: dict[str, Any], param: str) -> list[Any]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidRequest(
            f"a message of input {param!r} has tool_calls that are not a list", param=param
        )
    return calls


def _tool_call(value: Any, param: str) -> ToolCall:
    match value:
        case {"function": {"name": str(name), "arguments": str() | None as arguments}}:
            id = value.get("id")
            function = CalledFunction(name=name, arguments=arguments or "{}")
            return ToolCall(function=function, id=id if isinstance(id, str) else "")
    raise InvalidRequest(f"a tool call of input {param!r} is not an OpenAI tool call", param=param)
