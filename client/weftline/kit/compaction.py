"""How a summary is asked behind a live conversation, and what replaces the conversation then.

The question is the last message of the conversation itself, so its prompt is in the cache.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from weftline.contract.calls import ANSWER, LATER

INSTRUCTION = (
    "Stop here, and summarise the conversation above. The summary will replace it, and you will "
    "go on from the summary. Keep what that needs: what the user wants, what was done and found, "
    "decisions with their reasons, names of files and things, errors, and the next steps. Call no "
    "tools. Answer with the summary alone."
)
# Stands for the messages in a user's own prompt of a summary, which has them as text.
ABOVE = "(the messages above)"

# Stand in texts for the answer and for what is not known yet. No text has them by chance.
ANSWER_MARK, LATER_MARK = (f"\ue000{uuid.uuid4().hex}\ue000" for _ in range(2))
_INPUTS = {ANSWER_MARK: ANSWER, LATER_MARK: LATER}
_MARKS = re.compile(f"({ANSWER_MARK}|{LATER_MARK})")
_FIELDS = ("role", "name", "tool_call_id", "reasoning_content")


def replacing(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form, whose texts have the marks, as `compacts_to` of a request."""
    return [_message(one) for one in messages]


def _message(sent: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: sent[name] for name in _FIELDS if sent.get(name) is not None}
    made["content"] = [
        {"input": _INPUTS[part]} if part in _INPUTS else {"text": part}
        for part in _MARKS.split(_text(sent.get("content")))
        if part
    ]
    if calls := sent.get("tool_calls"):
        made["tool_calls"] = [{"id": one["id"], "function": one["function"]} for one in calls]
    return made


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
