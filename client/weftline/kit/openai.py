"""Turns the values of a graph into responses of OpenAI's API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from weftline.sdk.watch_events import Value

THOUGHTS = "reasoning_content"  # of a message, of a delta, and of the facts of a value


def usage(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `usage` of a response, from the facts that came with a value."""
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    made: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": facts["cached_tokens"]},
    }
    if tokens := facts.get("reasoning_tokens"):
        made["completion_tokens_details"] = {"reasoning_tokens": tokens}
    return made


def finish_reason(value: Any, reason: str) -> str:
    """The `finish_reason` of a response: "tool_calls" for a complete message that calls tools."""
    calls = isinstance(value, dict) and value.get("tool_calls")
    return "tool_calls" if calls and reason == "stop" else reason


def message(value: Any, facts: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The assistant's message. The value of a call with tools is the message, else its text, with
    the thoughts among the facts that came with it."""
    if isinstance(value, dict):
        return value
    made = {"role": "assistant", "content": value}
    if thoughts := facts.get(THOUGHTS):
        made[THOUGHTS] = thoughts
    return made


def whole_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """A complete message as the `delta` of one chunk. Each tool call gets its index."""
    calls = message.get("tool_calls") or ()
    indexed = [{**call, "index": index} for index, call in enumerate(calls)]
    return {**message, "tool_calls": indexed}


class Chunks:
    """The chunks of one streamed answer, as many as the server sends for an ordinary request.

    A chunk with the role comes before the text, one with the finish reason behind it, and then the
    usage. Handlers that count chunks get the same number in both cases.
    """

    def __init__(self, *, chat: bool = True) -> None:
        self.has_begun = False
        self._chat = chat
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": "",
        }

    def text(self, text: str, thoughts: str = "") -> Iterator[dict[str, Any]]:
        """A part of the answer's text. Before the first part stand the chunk with the role and the
        one with the thoughts."""
        yield from self._begin(thoughts)
        yield self._chunk({"content": text})

    def end(self, value: Value) -> Iterator[dict[str, Any]]:
        """What follows the text. A message, which may have tool calls, is one chunk of its own."""
        self._head["model"] = value.facts["model"]
        if isinstance(value.value, dict):
            self.has_begun = True
            yield self._chunk(whole_delta(value.value))
        else:
            yield from self._begin(value.facts.get(THOUGHTS, ""))
        yield self._chunk({}, finish_reason(value.value, value.facts["finish_reason"]))
        yield {**self._head, "choices": [], "usage": usage(value.facts)}

    def _begin(self, thoughts: str) -> Iterator[dict[str, Any]]:
        if not self.has_begun:
            self.has_begun = True
            yield self._chunk({"role": "assistant", "content": ""})
            if thoughts:
                yield self._chunk({THOUGHTS: thoughts})

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        content = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        return {**self._head, "choices": [{"index": 0, **content, "finish_reason": reason}]}
