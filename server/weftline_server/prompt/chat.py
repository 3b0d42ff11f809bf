"""Turns chat messages into what a chat template or an endpoint takes; describes tools in text where
neither has any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weftline.contract.tools import NamedTool, Tool, ToolCall
from weftline_engine.api import THOUGHTS, Chat
from weftline_server.prompt.render import RenderedMessage, ToolOffer
from weftline_server.prompt.template_roles import DEVELOPER, GUIDES, SYSTEM
from weftline_server.prompt.template_thoughts import Marks, ThoughtForm, write_thoughts
from weftline_server.prompt.tool_format import MISTRALS, ToolFormat

WriteCalls = Callable[[Sequence[ToolCall]], str]

# The format of Hermes and Qwen. Instruction-tuned models have seen most calls in this format.
_INSTRUCTIONS = """You can call functions. Their signatures, a JSON object a line:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments as JSON inside these tags:
<tool_call>
{{"name": "function", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def complete(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool with the parts that a client may leave out, each empty: its description and the
    properties of its arguments."""
    function = tool["function"]
    schema = function["parameters"]
    if isinstance(schema, dict) and schema.get("type") == "object":
        schema = {"properties": {}, **schema}
    return {**tool, "function": {"description": "", **function, "parameters": schema}}


def for_template(
    turns: Sequence[RenderedMessage],
    format: ToolFormat,
    form: ThoughtForm,
    marks: Marks | None,
    keeps: bool,
) -> list[dict[str, Any]]:
    """Return messages as a template takes them: arguments are JSON objects, and thoughts have the
    form that it reads. A template that has no form for them writes them as text of an answer: those
    of earlier answers than the user's last message only if the request `keeps` them, as most
    templates do by themselves.
    """
    messages = [_message(turn, format) for turn in turns]
    first = 0
    if form is ThoughtForm.TEXT and not keeps:
        asked = (at for at, one in enumerate(turns) if one.role == "user" and not _answers(one))
        first = max(asked, default=0)
    for turn, message in zip(turns[first:], messages[first:], strict=True):
        if turn.thoughts:
            write_thoughts(message, turn.thoughts, form, marks)
    return messages


def for_endpoint(turns: Sequence[RenderedMessage], offer: ToolOffer) -> Chat:
    """Return a chat for an engine that renders chats itself."""
    messages = tuple(map(_requested, turns))
    if not offer.tools and not any(turn.tool_calls or turn.role == "tool" for turn in turns):
        return Chat(messages=messages)
    choice: Any = offer.choice
    if isinstance(choice, NamedTool):
        choice = {"type": "function", "function": {"name": choice.function.name}}
    shown = () if choice == "none" else offer.tools
    return Chat(
        messages=messages,
        tools=tuple(tool.to_request() for tool in offer.tools),
        choice=choice,
        parallel=offer.parallel,
        words=tuple(map(_requested, in_words(turns, shown))),
    )


def with_calls_in_text(
    turns: Iterable[RenderedMessage], write: WriteCalls
) -> tuple[RenderedMessage, ...]:
    """Return messages whose calls stand in their text, for a template that describes tools but
    writes no calls."""
    return tuple(
        replace(turn, content=turn.content + write(turn.tool_calls), tool_calls=())
        if turn.tool_calls
        else turn
        for turn in turns
    )


def write_calls(format: ToolFormat, calls: Sequence[ToolCall]) -> str:
    """Write calls as a model with this format does."""
    if format is ToolFormat.GRANITE:
        return f"<|tool_call|>[{', '.join(map(_json_call, calls))}]"
    return "\n".join(f"<tool_call>\n{_json_call(one)}\n</tool_call>" for one in calls)


def in_words(
    turns: Sequence[RenderedMessage], tools: Sequence[Tool]
) -> tuple[RenderedMessage, ...]:
    """Return messages for a template without tools: no role is tool, and no message has calls.

    The tools are described at the end of the first system message. Calls become text of the
    assistant's messages, and tool results become text of user messages.
    """
    said = [_in_words(turn) for turn in turns]
    if tools:
        lines = "\n".join(json.dumps(one.to_template(), ensure_ascii=False) for one in tools)
        block = _INSTRUCTIONS.format(tools=lines)
        if said and said[0].role in GUIDES:
            said[0] = replace(said[0], content=f"{said[0].content}\n\n{block}")
        else:
            said.insert(0, RenderedMessage("system", block))
    merged: list[RenderedMessage] = []
    for turn, original in zip(said, [*[None] * (len(said) - len(turns)), *turns], strict=True):
        # Tool results in a row are merged, because templates expect the roles to alternate.
        if merged and original is not None and original.role == "tool" and _answers(merged[-1]):
            merged[-1] = replace(merged[-1], content=f"{merged[-1].content}\n{turn.content}")
        else:
            merged.append(turn)
    return tuple(merged)


def _in_words(turn: RenderedMessage) -> RenderedMessage:
    if turn.role == "tool":
        return RenderedMessage("user", f"<tool_response>\n{turn.content}\n</tool_response>")
    if turn.tool_calls:
        calls = write_calls(ToolFormat.HERMES, turn.tool_calls)
        content = f"{turn.content}\n{calls}" if turn.content else calls
        return replace(turn, content=content, tool_calls=())
    return turn


def _answers(turn: RenderedMessage) -> bool:
    return turn.role == "user" and turn.content.startswith("<tool_response>\n")


def _json_call(call: ToolCall) -> str:
    name = json.dumps(call.function.name, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {call.function.arguments}}}'


def _message(turn: RenderedMessage, format: ToolFormat) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.name is not None:
        message["name"] = turn.name
    if turn.tool_calls:
        message["tool_calls"] = [_call(one, format) for one in turn.tool_calls]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = _id(turn.tool_call_id, format)
    return message


def _call(call: ToolCall, format: ToolFormat) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = call.function.arguments  # a model wrote invalid JSON: it stays text
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": _id(call.id, format), "type": "function", "function": function}


def _requested(turn: RenderedMessage) -> dict[str, Any]:
    # Calls and results without ids, such as those of a model that writes code, are no calls there.
    if turn.tool_call_id is None and (
        turn.role == "tool" or not all(one.id for one in turn.tool_calls)
    ):
        turn = _in_words(turn)
    # What the endpoint's template knows cannot be tried from here.
    role = SYSTEM if turn.role == DEVELOPER else turn.role
    message: dict[str, Any] = {"role": role, "content": turn.content}
    if turn.name is not None:
        message["name"] = turn.name
    if turn.tool_calls:
        message["content"] = turn.content or None
        message["tool_calls"] = [_requested_call(one) for one in turn.tool_calls]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    if turn.thoughts:
        message[THOUGHTS] = turn.thoughts
    return message


def _requested_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _id(id: str, format: ToolFormat) -> str:
    # Mistral's templates take ids of nine characters. The last nine of a longer id are unique, too.
    return id[-9:] if format in MISTRALS else id
