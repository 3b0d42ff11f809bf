"""The tools of a call in a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from weftline.contract.tools import Tool, ToolChoice

_TYPES: dict[str, TypeAdapter[Any]] = {
    "tools": TypeAdapter(tuple[Tool, ...]),
    "tool_choice": TypeAdapter(ToolChoice),
    "parallel_tool_calls": TypeAdapter(bool),
}
FIELDS = tuple(_TYPES)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """OpenAI's fields about tools, as JSON text, so that equal toolboxes have equal hashes.

    The order of schemas and of their fields is part of the text, because a model reads it.
    """

    said: str

    @staticmethod
    def of(payload: Mapping[str, Any]) -> Toolbox | None:
        """The tools of a request, or None where it has none. Raises ValueError for a bad tool."""
        said = {name: payload[name] for name in FIELDS if payload.get(name) is not None}
        if not said.get("tools"):
            return None
        toolbox = Toolbox(json.dumps(said))
        toolbox.fields()
        return toolbox

    def fields(self) -> dict[str, Any]:
        """These tools as the fields of a call. A field that the request does not set is unset."""
        said = json.loads(self.said)
        return {name: _TYPES[name].validate_python(value) for name, value in said.items()}
