"""The tools of a call in a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from weftline.contract.tools import Tool, ToolChoice

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
_TOOLS: TypeAdapter[tuple[Tool, ...]] = TypeAdapter(tuple[Tool, ...])
_CHOICE: TypeAdapter[ToolChoice] = TypeAdapter(ToolChoice)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """OpenAI's fields about tools, as JSON text, so that equal toolboxes have equal hashes."""

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
