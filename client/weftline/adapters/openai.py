"""Turns the values of a graph into responses of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def usage(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `usage` of a response, from the facts that came with a value."""
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": facts["cached_tokens"]},
    }


def finish_reason(value: Any, reason: str) -> str:
    """The `finish_reason` of a response: "tool_calls" for a complete message that calls tools."""
    calls = isinstance(value, dict) and value.get("tool_calls")
    return "tool_calls" if calls and reason == "stop" else reason


def message(value: Any) -> dict[str, Any]:
    """The assistant's message. The value of a call with tools is the message, else its text."""
    return value if isinstance(value, dict) else {"role": "assistant", "content": value}


def whole_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """A complete message as the `delta` of one chunk. Each tool call gets its index."""
    calls = message.get("tool_calls") or ()
    indexed = [{**call, "index": index} for index, call in enumerate(calls)]
    return {**message, "tool_calls": indexed}
