"""Values of a graph in the shapes of OpenAI's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def usage(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `usage` of an answer, from the facts of a value."""
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": facts["cached_tokens"]},
    }


def finish_reason(value: Any, reason: str) -> str:
    """The `finish_reason` of an answer: one that calls tools and was not cut off ends with them."""
    calls = isinstance(value, dict) and value.get("tool_calls")
    return "tool_calls" if calls and reason == "stop" else reason


def message(value: Any) -> dict[str, Any]:
    """The assistant's message: with tools a value is the message itself, otherwise its text."""
    return value if isinstance(value, dict) else {"role": "assistant", "content": value}


def whole_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """A complete message as the `delta` of one chunk; its tool calls get their index."""
    calls = message.get("tool_calls") or ()
    indexed = [{**call, "index": index} for index, call in enumerate(calls)]
    return {**message, "tool_calls": indexed}
