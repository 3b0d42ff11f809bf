"""The three formats in which models write tool calls, and the constraints that enforce them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from weftline.protocol import Call
from weftline.tools import NamedTool, Tool


class ToolFormat(StrEnum):
    """A format, named after the models that introduced it.

    HERMES (also Qwen, and any model whose template has no tools): `<tool_call>` tags around
    `{"name": ..., "arguments": ...}`. LLAMA: `{"name": ..., "parameters": ...}` as the whole
    answer. MISTRAL: `[TOOL_CALLS]` and a list of `{"name": ..., "arguments": ...}`.
    """

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"


def format_of(template: str | None) -> ToolFormat:
    """Return the format of the model with this chat template."""
    if template is None or "<tool_call>" in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL
    if '"parameters": ' in template and "tools" in template:
        return ToolFormat.LLAMA
    return ToolFormat.HERMES


def written(format: ToolFormat, name: str) -> tuple[str, str]:
    """Return the text before and after the arguments of a call of `name`."""
    quoted = json.dumps(name)
    match format:
        case ToolFormat.HERMES:
            return f'<tool_call>\n{{"name": {quoted}, "arguments": ', "}\n</tool_call>"
        case ToolFormat.LLAMA:
            return f'{{"name": {quoted}, "parameters": ', "}"
        case ToolFormat.MISTRAL:
            # The mark is a special token and cannot stand in text. The list alone is clear enough.
            return f'[{{"name": {quoted}, "arguments": ', "}]"


# The text that starts a call within a free answer. Mistral's mark is not text, so it has none.
_TRIGGERS = {ToolFormat.HERMES: "<tool_call>", ToolFormat.LLAMA: '{"name": '}


def triggers(format: ToolFormat) -> tuple[str, ...]:
    """Return the texts that show that an output calls a tool; none where they are not text."""
    return (_TRIGGERS[format],) if format in _TRIGGERS else ()


def constraint(call: Call, otherwise: dict[str, Any] | None, format: ToolFormat) -> str | None:
    """Return the engine's constraint for an output of `call` as JSON text; None if it is free.

    `otherwise` is the client's constraint on text. If the tools are optional, the answer is a call
    or such a text. A forced call must match its tool's schema. An optional call must match it if a
    tool is strict.
    """
    tools = call.offered_tools
    forced = call.tool_choice == "required" or isinstance(call.tool_choice, NamedTool)
    if not tools or not (forced or otherwise or any(tool.function.strict for tool in tools)):
        return None if otherwise is None else json.dumps(otherwise)
    if isinstance(call.tool_choice, NamedTool):
        wanted = call.tool_choice.function.name
        tools = tuple(tool for tool in tools if tool.function.name == wanted)
    several = call.parallel_tool_calls and format is ToolFormat.HERMES
    body: dict[str, Any] = {"tags": _tags(tools, format), "stop_after_first": not several}
    if forced:
        # A named function is called exactly once, as in OpenAI's API.
        once = not several or isinstance(call.tool_choice, NamedTool)
        body |= {"separator": "\n", "stop_after_first": once}
    elif otherwise is not None:
        body |= {"separator": "\n", "otherwise": otherwise}
    elif format in _TRIGGERS:
        body["trigger"] = _TRIGGERS[format]
    else:
        return None
    return json.dumps({"structural_tag": body})


def _tags(tools: Sequence[Tool], format: ToolFormat) -> list[dict[str, Any]]:
    tags = []
    for tool in tools:
        begin, end = written(format, tool.function.name)
        schema = tool.function.schema
        if "properties" in schema:  # further properties are allowed only where it says so
            schema = {"additionalProperties": False, **schema}
        tags.append({"begin": begin, "schema": schema, "end": end})
    return tags
