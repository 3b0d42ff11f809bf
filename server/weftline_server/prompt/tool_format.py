"""The formats in which models write tool calls, and the constraints that enforce them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from weftline.contract.constraints import tag_format
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call
from weftline.contract.tools import NamedTool, Tool


class ToolFormat(StrEnum):
    """A format, named after the models that introduced it.

    HERMES (also Qwen, and any model whose template has no tools): `<tool_call>` tags around
    `{"name": ..., "arguments": ...}`. LLAMA: `{"name": ..., "parameters": ...}` as the whole
    answer. MISTRAL: `[TOOL_CALLS]` and a list of `{"name": ..., "arguments": ...}`. MISTRAL_NAMED
    (Mistral Small 3.2, Ministral 3, Devstral): `[TOOL_CALLS]`, the name, `[ARGS]` and the arguments
    for each call. GRANITE (its third generation): such a list as Mistral's after `<|tool_call|>`.
    """

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    MISTRAL_NAMED = "mistral, named"
    GRANITE = "granite"


MISTRALS = (ToolFormat.MISTRAL, ToolFormat.MISTRAL_NAMED)


def format_of(template: str | None) -> ToolFormat:
    """Return the format of the model with this chat template."""
    if template is None or "<tool_call>" in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL_NAMED if "[ARGS]" in template else ToolFormat.MISTRAL
    if "<|tool_call|>" in template and "tools" in template:
        return ToolFormat.GRANITE
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
        case ToolFormat.MISTRAL | ToolFormat.GRANITE:
            # The mark is a special token and cannot stand in text. The list alone is clear enough.
            return f'[{{"name": {quoted}, "arguments": ', "}]"
        case ToolFormat.MISTRAL_NAMED:
            return name, ""  # the marks are special tokens, too


# The text that starts a call within a free answer. A mark that is not text starts none.
_TRIGGERS = {ToolFormat.HERMES: "<tool_call>", ToolFormat.LLAMA: '{"name": '}


# The text between two calls. The other formats have one call, or marks that are not text.
_SEPARATORS = {ToolFormat.HERMES: "\n", ToolFormat.MISTRAL: ", ", ToolFormat.GRANITE: ", "}


def triggers(format: ToolFormat) -> tuple[str, ...]:
    """Return the texts that show that an output calls a tool; none where they are not text."""
    return (_TRIGGERS[format],) if format in _TRIGGERS else ()


def constraint(call: Call, otherwise: dict[str, Any] | None, format: ToolFormat) -> str | None:
    """Return the engine's constraint for an output of `call` as JSON text; None if it is free.

    `otherwise` is the client's constraint on text. If the tools are optional, the answer is a call
    or such a text. A forced call must match its tool's schema. An optional call must match it if a
    tool is strict. Raises InvalidRequest for a tool with a grammar that an optional call would not
    keep.
    """
    tools = call.offered_tools
    forced = _is_forced(call)
    if not tools or not (forced or otherwise or any(tool.function.is_held for tool in tools)):
        return None if otherwise is None else json.dumps(for_engine(otherwise))
    if isinstance(call.tool_choice, NamedTool):
        wanted = call.tool_choice.function.name
        tools = tuple(tool for tool in tools if tool.function.name == wanted)
    several = call.may_call_several and format in _SEPARATORS
    # A named function is called exactly once, as in OpenAI's API.
    once = not several or isinstance(call.tool_choice, NamedTool)
    calls = _calls(_tags(tools, format), format, once)
    if forced:
        return json.dumps({"structural_tag": calls})
    if otherwise is not None:
        either = {"type": "or", "elements": [calls, *_elements(otherwise)]}
        return json.dumps({"structural_tag": either})
    if format not in _TRIGGERS:
        _check_free(tools)
        return None
    free = {
        "type": "triggered_tags",
        "triggers": [_TRIGGERS[format]],
        "tags": _tags(tools, format),
        "stop_after_first": once,
    }
    return json.dumps({"structural_tag": free})


def _check_free(tools: Sequence[Tool]) -> None:
    for tool in tools:
        if tool.function.grammar is not None:
            raise InvalidRequest(
                "the model begins a call with a token that is no text, so that the grammar of "
                f"tool {tool.function.name!r} holds for a forced call alone: force it by "
                "tool_choice, or leave the grammar out",
                param="tools",
            )


# What the templates of models call the switch by which a client asks for thoughts.
_SWITCHES = ("enable_thinking", "thinking")


def thinks_first(call: Call) -> bool:
    """Whether the client has asked for thoughts, so that a constraint holds behind them only."""
    words = call.chat_template_kwargs or {}
    return any(words.get(name) is True for name in _SWITCHES)


def behind_thoughts(constraint: str, begin: str, end: str) -> str:
    """An engine's constraint that holds behind free text between two marks, and line breaks."""
    wish = json.loads(constraint)
    forms = [wish["structural_tag"]] if "structural_tag" in wish else _elements(wish)
    thoughts = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
    space = {"type": "regex", "pattern": "\\n{0,2}"}
    answer = forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
    return json.dumps(
        {"structural_tag": {"type": "sequence", "elements": [thoughts, space, answer]}}
    )


def holds_beginning(call: Call, otherwise: dict[str, Any] | None) -> bool:
    """Return whether the constraint of an output holds from its first token.

    A constraint with triggers leaves the text before them free.
    """
    match otherwise:
        case None:
            return bool(call.offered_tools) and _is_forced(call)
        case {"structural_tag": tag}:
            return tag_format(tag).get("type") != "triggered_tags"
    return True


def _is_forced(call: Call) -> bool:
    return call.tool_choice == "required" or isinstance(call.tool_choice, NamedTool)


def for_engine(wish: dict[str, Any]) -> dict[str, Any]:
    """A client's constraint as engines take it: of a structural tag only the format."""
    match wish:
        case {"structural_tag": tag}:
            return {"structural_tag": tag_format(tag)}
    return wish


def _elements(wish: dict[str, Any]) -> list[dict[str, Any]]:
    """The formats of a structural tag that say the same as a client's constraint."""
    match wish:
        case {"json_schema": schema}:
            return [{"type": "json_schema", "json_schema": schema}]
        case {"regex": pattern}:
            return [{"type": "regex", "pattern": pattern}]
        case {"choice": texts}:
            return [{"type": "const_string", "value": text} for text in texts]
        case {"grammar": text}:
            return [{"type": "grammar", "grammar": text}]
        case {"structural_tag": tag}:
            return [tag_format(tag)]
    raise AssertionError(f"a client's constraint was checked: {wish}")


def _calls(tags: list[dict[str, Any]], format: ToolFormat, once: bool) -> dict[str, Any]:
    """The format of an answer that is one call, or several: between tags, or in one list."""
    is_list = not once and format is not ToolFormat.HERMES
    if is_list:
        tags = [{**tag, "begin": tag["begin"][1:], "end": tag["end"][:-1]} for tag in tags]
    calls = {
        "type": "tags_with_separator",
        "separator": _SEPARATORS.get(format, "\n"),
        "tags": tags,
        "at_least_one": True,
        "stop_after_first": once,
    }
    if not is_list:
        return calls
    begin, end = ({"type": "const_string", "value": mark} for mark in "[]")
    return {"type": "sequence", "elements": [begin, calls, end]}


def _tags(tools: Sequence[Tool], format: ToolFormat) -> list[dict[str, Any]]:
    tags = []
    for tool in tools:
        begin, end = written(format, tool.function.name)
        if tool.function.grammar is not None:
            before, behind = f'{{{json.dumps(tool.function.argument)}: "', '"}'
            content: dict[str, Any] = {"type": "json_string", "grammar": tool.function.grammar}
            tag = {"type": "tag", "begin": begin + before, "content": content, "end": behind + end}
            tags.append(tag)
            continue
        schema = tool.function.schema
        if "properties" in schema:  # further properties are allowed only where it says so
            schema = {"additionalProperties": False, **schema}
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return tags
