"""The thoughts of a model in LangChain's messages: where an answer keeps them, and sent back.

An answer has them as `additional_kwargs["reasoning_content"]`, of which LangChain makes a standard
content block of type `reasoning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

FIELD = "reasoning_content"  # of a message of OpenAI's API, and of `additional_kwargs`


def thoughts_of(message: BaseMessage) -> str:
    """The thoughts before an earlier answer, of whatever model; "" if it has none."""
    if not isinstance(message, AIMessage):
        return ""
    kept = message.additional_kwargs.get(FIELD)
    if isinstance(kept, str):
        return kept
    if isinstance(message.content, str):
        return ""
    blocks = (block for block in message.content_blocks if block["type"] == "reasoning")
    return "".join(block.get("reasoning") or "" for block in blocks)


def add_thoughts(sent: Sequence[dict[str, Any]], messages: Sequence[BaseMessage]) -> None:
    """Add the thoughts of `messages` to the same messages as they are `sent`."""
    for body, message in zip(sent, messages, strict=True):
        if thoughts := thoughts_of(message):
            body[FIELD] = thoughts


def keep_thoughts(message: BaseMessage, received: Any) -> None:
    """Keep the thoughts of what was received in the message that LangChain has made of it. It is a
    message or a delta, as JSON or as an object of the openai client.
    """
    found = received.get(FIELD) if isinstance(received, dict) else getattr(received, FIELD, None)
    if isinstance(found, str) and found:
        message.additional_kwargs[FIELD] = found
