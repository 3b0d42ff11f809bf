"""The fields of requests whose answers are objects, as LlamaIndex's pydantic programs make them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.output_parsers.pydantic import PYDANTIC_FORMAT_TMPL
from llama_index.core.program.function_program import get_function_tool
from llama_index.core.types import PydanticProgramMode

_BEFORE, _AFTER = PYDANTIC_FORMAT_TMPL.split("{schema}")


def are_asked_in_text(llm: Any) -> bool:
    """Whether `llm` gets an object as JSON in the answer's text, and not as the call of a tool.

    LlamaIndex's get_program_for_llm chooses in the same way.
    """
    mode = llm.pydantic_program_mode
    if mode is PydanticProgramMode.DEFAULT:
        return not llm.is_function_calling_model
    return bool(mode is PydanticProgramMode.LLM)


def as_text_field(output_cls: type[BaseModel]) -> dict[str, Any]:
    """The field that constrains the text of an answer to the JSON schema of this class."""
    return _held_to(output_cls.__name__, output_cls.model_json_schema())


def as_tool_fields(
    output_cls: type[BaseModel],
    choice: str | Mapping[str, Any] | None = None,
    required: bool = True,
    parallel: bool = False,
) -> dict[str, Any]:
    """The fields that make the model call the tool that builds an object of this class."""
    tool = get_function_tool(output_cls)
    return offer([tool.metadata.to_openai_tool(skip_length_check=True)], choice, required, parallel)


def offer(
    tools: Sequence[Mapping[str, Any]],
    choice: str | Mapping[str, Any] | None,
    required: bool,
    parallel: bool,
) -> dict[str, Any]:
    """The fields of a request whose answer may call tools, or must call one."""
    if choice is None:
        choice = "required" if required else "auto"
    elif isinstance(choice, str) and choice not in ("auto", "none", "required"):
        choice = {"type": "function", "function": {"name": choice}}
    return {"tools": list(tools), "tool_choice": choice, "parallel_tool_calls": parallel}


def wanted(texts: Sequence[str]) -> dict[str, Any]:
    """The field that constrains the answer to the JSON schema in these messages.

    LlamaIndex's PydanticOutputParser puts the schema at the end of the first or the last message.
    The LLM gets it in no other way. Without a schema the result is empty.
    """
    for text in (texts[0], texts[-1]) if texts else ():
        start = text.rfind(_BEFORE)
        if start < 0 or not text.endswith(_AFTER):
            continue
        schema = _read(text[start + len(_BEFORE) : -len(_AFTER)])
        if schema is not None:
            return _held_to(str(schema.get("title", "object")), schema)
    return {}


def _read(text: str) -> dict[str, Any] | None:
    # The parser doubles every brace, as if the text were a template.
    for found in (text.replace("{{", "{").replace("}}", "}"), text):
        try:
            schema = json.loads(found)
        except ValueError:
            continue
        if isinstance(schema, dict):
            return schema
    return None


def _held_to(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    shape = {"name": name, "schema": _closed(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": shape}}


def _closed(schema: Any) -> Any:
    """The schema without additional properties, unless it allows them explicitly.

    Pydantic drops additional properties, and a small model that may add some often never stops.
    """
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping):
        closed.setdefault("additionalProperties", False)
    return closed
