"""The tools of a call in a graph, and the message in which a model calls them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_openai.chat_models.base import _convert_dict_to_message
from pydantic import TypeAdapter

from weftline.adapters.openai import finish_reason
from weftline.tools import Tool, ToolChoice

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
_TOOLS: TypeAdapter[tuple[Tool, ...]] = TypeAdapter(tuple[Tool, ...])
_CHOICE: TypeAdapter[ToolChoice] = TypeAdapter(ToolChoice)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """OpenAI's fields about tools, as JSON text so that equal toolboxes have equal hashes."""

    said: str

    @staticmethod
    def of(payload: Mapping[str, Any]) -> Toolbox | None:
        """The tools of a request, or None where it has none. Raises ValueError for a bad tool."""
        said = {name: payload[name] for name in FIELDS if payload.get(name) is not None}
        if not said.get("tools"):
            return None
        toolbox = Toolbox(json.dumps(said, sort_keys=True))
        toolbox.fields()
        return toolbox

    def fields(self) -> dict[str, Any]:
        """These tools as the fields of a call."""
        said = json.loads(self.said)
        several = said.get("parallel_tool_calls")
        return {
            "tools": _TOOLS.validate_python(said["tools"]),
            "tool_choice": _CHOICE.validate_python(said.get("tool_choice")),
            "parallel_tool_calls": True if several is None else several,
        }


def message_of(value: Any, facts: Mapping[str, Any]) -> AIMessage:
    """LangChain's message for the value of a call: its text, or with tools a message as JSON."""
    if not isinstance(value, dict):
        return AIMessage(content=value, **facts)
    made = _convert_dict_to_message(value)
    assert isinstance(made, AIMessage), "a call answers as the assistant"
    made.usage_metadata = facts.get("usage_metadata")
    made.response_metadata = dict(facts.get("response_metadata", {}))
    if "finish_reason" in made.response_metadata:
        reason = finish_reason(value, made.response_metadata["finish_reason"])
        made.response_metadata["finish_reason"] = reason
    return made
