"""Transforms of an assistant's message: the tools that it calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import Transform, check_json, check_text, refuse


@dataclass(frozen=True, slots=True)
class ToolCalls(Transform):
    """The tool calls of a message as `args` and `type`, and with `return_id` also `id`.

    `key_name` selects the calls of one tool. With it and without `return_id`, the value has only
    the calls' arguments. `first_tool_only` gives the first call alone. A call whose arguments are
    not JSON, because the answer was cut off, is ignored. The transform replaces
    JsonOutputToolsParser and JsonOutputKeyToolsParser.
    """

    op: ClassVar[str] = "tool_calls"
    key_name: str | None = None
    first_tool_only: bool = False
    return_id: bool = False

    def __post_init__(self) -> None:
        if self.key_name is not None:
            check_text(self.key_name, "tool_calls' 'key_name'")
        if not isinstance(self.first_tool_only, bool) or not isinstance(self.return_id, bool):
            refuse("tool_calls' 'first_tool_only' and 'return_id' are true or false")

    def apply(self, value: Any) -> Any:
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise TransformFailed(f"tool_calls reads a message, but its value is a {kind}")
        calls = [self._shown(call) for call in value.get("tool_calls") or () if _is_valid(call)]
        if self.key_name is None:
            # Without a call LangChain's parser always gives an empty list.
            return calls[0] if calls and self.first_tool_only else calls
        found = [call for call in calls if call["type"] == self.key_name]
        made = found if self.return_id else [call["args"] for call in found]
        if not self.first_tool_only:
            return made
        return made[0] if made else None

    def _shown(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        args = _arguments(function["arguments"])
        check_json(args)
        id = {"id": call.get("id")} if self.return_id else {}
        return {"args": args, **id, "type": function["name"]}


def _is_valid(call: dict[str, Any]) -> bool:
    try:
        return isinstance(_arguments(call["function"]["arguments"]), dict)
    except (ValueError, RecursionError):
        return False


def _arguments(text: str) -> Any:
    return json.loads(text, strict=False) or {} if text else {}
