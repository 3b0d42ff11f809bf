"""How models write tool calls: the three ways in use, and what holds an output to one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from weftline.protocol import Call
from weftline.tools import NamedTool, Tool


class ToolFormat(StrEnum):
    """Named by who came with it.

    HERMES (also Qwen, and any model whose template knows no tools): `<tool_call>` tags around
    `{"name": ..., "arguments": ...}`. LLAMA: `{"name": ..., "parameters": ...}` as the whole
    answer. MISTRAL: `[TOOL_CALLS]` and a list of `{"name": ..., "arguments": ...}`.
    """

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"


def format_of(template: str | None) -> ToolFormat:
    """The format of the model whose chat template this is."""
    if template is None or "<tool_call>" in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL
    if '"parameters": ' in template and "tools" in template:
        return ToolFormat.LLAMA
    return ToolFormat.HERMES


def written(format: ToolFormat, name: str) -> tuple[str, str]:
    """What stands before and after the arguments of a call of `name`."""
    quoted = json.dumps(name)
    match format:
        case ToolFormat.HERMES:
            return f'<tool_call>\n{{"name": {quoted}, "arguments": ', "}\n</tool_call>"
        case ToolFormat.LLAMA:
            return f'{{"name": {quoted}, "parameters": ', "}"
        case ToolFormat.MISTRAL:
            # The mark itself is a special token, which no text can hold: the list says enough.
            return f'[{{"name": {quoted}, "arguments": ', "}]"


# Where a free answer turns into a call. Mistral's mark is no text, so nothing shows the turn.
_TRIGGERS = {ToolFormat.HERMES: "<tool_call>", ToolFormat.LLAMA: '{"name": '}


def constraint(call: Call, otherwise: dict[str, Any] | None, format: ToolFormat) -> str | None:
    """The engine's constraint for an output of `call`, as JSON; None where it may be anything.

    `otherwise` is what the client asks the text to be: with tools that it may leave uncalled, the
    answer is either. A forced call is held to its tool's schema, and a free one where a tool is
    strict.
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
        # A named function is called once, as OpenAI's API has it.
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
        if "properties" in schema:  # it means these, unless it says that it takes more
            schema = {"additionalProperties": False, **schema}
        tags.append({"begin": begin, "schema": schema, "end": end})
    return tags
