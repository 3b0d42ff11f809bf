"""Turns LlamaIndex's messages into requests of OpenAI's API, and the responses back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.utils import parse_partial_json

from weftline.errors import InvalidRequest

CHAT = "chat/completions"
TEXT = "completions"

_THOUGHTS = "reasoning_content"  # of a message and of a delta
_ROLES = {
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
}


def message_body(message: ChatMessage) -> dict[str, Any]:
    """One message in OpenAI's shape. Raises InvalidRequest for blocks that are not text."""
    for block in message.blocks:
        if not isinstance(block, (TextBlock, ThinkingBlock, ToolCallBlock)):
            kind = type(block).__name__
            raise InvalidRequest(f"weftline serves text models, and a message holds a {kind}")
    role = MessageRole(message.role)
    body: dict[str, Any] = {"role": _ROLES.get(role, role.value), "content": said_in(message)}
    calls = [_call_body(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    if made := calls or message.additional_kwargs.get("tool_calls"):
        body["tool_calls"] = made
    thoughts = [one.content or "" for one in message.blocks if isinstance(one, ThinkingBlock)]
    if any(thoughts):
        body[_THOUGHTS] = "".join(thoughts)
    for name in ("tool_call_id", "name"):
        if name in message.additional_kwargs:
            body[name] = message.additional_kwargs[name]
    return body


def said_in(message: ChatMessage) -> str:
    """The texts of a message, joined as LlamaIndex's OpenAI joins them: `content` puts line breaks
    between them."""
    return "".join(block.text for block in message.blocks if isinstance(block, TextBlock))


def _call_body(block: ToolCallBlock) -> dict[str, Any]:
    given = block.tool_kwargs
    arguments = given if isinstance(given, str) else json.dumps(given)
    function = {"name": block.tool_name, "arguments": arguments}
    return {"id": block.tool_call_id or "", "type": "function", "function": function}


def chat_response(answer: Mapping[str, Any]) -> ChatResponse:
    """The response for a complete answer of the chat endpoint."""
    choice = answer["choices"][0]
    said = choice["message"]
    blocks: list[Any] = [TextBlock(text=said["content"])] if said.get("content") is not None else []
    thoughts = _thinking(said.get(_THOUGHTS), answer)
    return ChatResponse(
        message=_assistant([*thoughts, *blocks], said.get("tool_calls") or []),
        raw=dict(answer),
        additional_kwargs=_usage(answer),
    )


def _thinking(thoughts: str | None, answer: Mapping[str, Any]) -> list[ThinkingBlock]:
    """The block with the thoughts of an answer, if it has any, and their tokens, if it has counted
    them."""
    details = (answer.get("usage") or {}).get("completion_tokens_details") or {}
    block = ThinkingBlock(content=thoughts, num_tokens=details.get("reasoning_tokens"))
    return [block] if thoughts else []


def _assistant(blocks: list[Any], calls: list[Any]) -> ChatMessage:
    """An assistant's message. It has its tool calls twice, because LlamaIndex reads two places."""
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        blocks=[*blocks, *map(_call_block, calls)],
        additional_kwargs={"tool_calls": calls} if calls else {},
    )


def _call_block(call: Mapping[str, Any]) -> ToolCallBlock:
    function = call["function"]
    return ToolCallBlock(
        tool_call_id=call.get("id"), tool_name=function["name"], tool_kwargs=function["arguments"]
    )


def completion_response(answer: Mapping[str, Any]) -> CompletionResponse:
    """The response for a complete answer of the text endpoint."""
    text = answer["choices"][0]["text"]
    return CompletionResponse(text=text, raw=dict(answer), additional_kwargs=_usage(answer))


def as_completion(response: ChatResponse) -> CompletionResponse:
    """A chat's answer as the completion of a text."""
    return CompletionResponse(
        text=response.message.content or "",
        delta=response.delta,
        raw=response.raw,
        additional_kwargs=response.additional_kwargs,
    )


def as_chat(response: CompletionResponse) -> ChatResponse:
    """The completion of a text as a chat's answer. LlamaIndex's own conversion puts the usage into
    the message, from where `messages_to_prompt` writes it into the next prompt."""
    return ChatResponse(
        message=_assistant([TextBlock(text=response.text)], []),
        delta=response.delta,
        raw=response.raw,
        additional_kwargs=response.additional_kwargs,
    )


def _usage(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The token counts, under the names that LlamaIndex's token counter looks for."""
    usage = answer.get("usage") or {}
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: usage[name] for name in names if name in usage}


@dataclass
class ChatSoFar:
    """A streamed chat answer. Every chunk becomes a response with the whole answer so far."""

    text: str = ""
    thoughts: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, chunk: Mapping[str, Any]) -> ChatResponse:
        """Add `chunk`. Returns the response so far."""
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        new = delta.get("content") or ""
        self.text += new
        thought = delta.get(_THOUGHTS) or ""
        self.thoughts += thought
        for part in delta.get("tool_calls") or ():
            self._take_call(part)
        calls = [deepcopy(self.calls[index]) for index in sorted(self.calls)]
        return ChatResponse(
            message=_assistant(
                [*_thinking(self.thoughts, chunk), TextBlock(text=self.text)], calls
            ),
            delta=new,
            raw=dict(chunk),
            # LlamaIndex's agents read the name `thinking_delta` for their events.
            additional_kwargs=_usage(chunk) | ({"thinking_delta": thought} if thought else {}),
        )

    def _take_call(self, part: Mapping[str, Any]) -> None:
        call = self.calls.setdefault(
            part.get("index", 0),
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
        )
        call["id"] = part.get("id") or call["id"]
        for key, value in (part.get("function") or {}).items():
            call["function"][key] += value or ""


@dataclass
class TextSoFar:
    """A streamed text answer. Every chunk becomes a response with the whole answer so far."""

    text: str = ""

    def take(self, chunk: Mapping[str, Any]) -> CompletionResponse:
        """Add `chunk`. Returns the response so far."""
        new = chunk["choices"][0]["text"] if chunk["choices"] else ""
        self.text += new
        return CompletionResponse(
            text=self.text, delta=new, raw=dict(chunk), additional_kwargs=_usage(chunk)
        )


def arguments_of(block: ToolCallBlock) -> dict[str, Any]:
    """The arguments of a tool call so far. Empty if they are not a JSON object."""
    given = block.tool_kwargs
    if isinstance(given, str):
        try:
            given = parse_partial_json(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def strip_to_text(messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...] | None:
    """Messages as pairs of role and text; None if one has other fields."""
    if any(message.keys() != {"role", "content"} for message in messages):
        return None
    return tuple((message["role"], message["content"]) for message in messages)
