"""What becomes of every field of a message in a chat or a response.

A field that is not served and says something is a 400 that names it, unless clients are known to
send it back with a message and it changes no prompt. `openai`, langchain-openai, litellm and the AI
SDK send an assistant's message back as they received it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from weftline.contract.errors import InvalidRequest

SERVED = frozenset(
    {
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "thinking_blocks",
        "refusal",
    }
)
_LABEL = "a name, a time or a count, for logs"
_OWN = "data of one client or one service about the message"
IGNORED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("id", "type", "object", "created", "created_at", "createdAt", "timestamp", "index"),
            _LABEL,
        ),
        **dict.fromkeys(("model", "usage", "finish_reason", "stop_reason", "weight"), _LABEL),
        "logprobs": _LABEL,
        "status": "how the message ended",
        "phase": "whether an answer was the last one",
        "annotations": "the sources of a text, which it names itself",
        "citations": "the sources of a text, which it names itself",
        "parsed": "the object that a client has read from the content",
        "cache_control": "caches are found by their content",
        "is_error": "how a tool ended, which its result says",
        "tool_name": "the tool of a result, which the id of the call tells",
        **dict.fromkeys(
            (
                "metadata",
                "provider_specific_fields",
                "provider_options",
                "providerOptions",
                "providerMetadata",
                "experimental_providerMetadata",
                "extra_content",
                "additional_kwargs",
                "response_metadata",
                "usage_metadata",
                "thought_signature",
                "signature",
            ),
            _OWN,
        ),
    }
)
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "function_call": "use tool_calls",
        "audio": "send what was said as content",
        "images": "send text",
        "prefix": "use continue_final_message",
        "partial": "use continue_final_message",
    }
)
_KNOWN = SERVED | IGNORED.keys()


def check_messages(messages: Any, name: str) -> None:
    """Raise InvalidRequest for the first field of a message that would change the prompt and is not
    served. null, false and what is empty say nothing. Items of a response or a conversation
    without a role or of another type are no messages."""
    if not isinstance(messages, list):
        return
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message or message.keys() <= _KNOWN:
            continue
        if name in ("input", "items") and message.get("type") not in (None, "message"):
            continue
        for field, value in message.items():
            if field not in _KNOWN and value not in (None, False, "", [], {}):
                where = f"{name}.{index}.{field[:40]}"
                instead = _INSTEAD.get(field, "leave it out")
                raise InvalidRequest(f"{where} is not served: {instead}", param=where)
