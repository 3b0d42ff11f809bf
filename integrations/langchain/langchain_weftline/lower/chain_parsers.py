"""The transform that replaces a LangChain parser, and what LangChain makes of its value.

This module adds two kinds of parsers to the table of `weftline.kit.parsers`. The value of some
parsers is not JSON (an object, a member of an enum, a date, a tuple). The other parsers read a
message's tool calls. Only exact classes count, because a subclass may override anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

from langchain_core.output_parsers import BaseOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    JsonOutputToolsParser,
    PydanticToolsParser,
)

from langchain_weftline.lower.shapes import ObjectShape, shape_of
from langchain_weftline.lower.symbols import AnswerMessage, CannotCompile, Ref, Spec, ValueKind
from weftline.contract import transforms
from weftline.errors import InvalidRequest
from weftline.kit import parsers

Parser = BaseOutputParser[Any]


def lowered_parser(parser: Parser) -> tuple[Spec | None, ValueKind | None]:
    """The transform that replaces `parser`, and what LangChain makes of its value.

    Raises CannotCompile if no transform does the same as the parser with its settings.
    """
    parts = _parts_of(type(parser))
    try:
        if parts is None:
            return parsers.parser_spec(parser), None
        spec = parts.spec(parser)
        transforms.parse(spec)
    except parsers.NoTransform as error:
        raise CannotCompile(error.parser, error.reason) from error
    except InvalidRequest as error:
        raise CannotCompile(parser, error.message) from error
    return spec, parts.kind


def parsed_shape(parser: Parser, found: tuple[Spec, ...]) -> ObjectShape | None:
    """The shape of the object that the client makes, from what the transforms `found` find."""
    if type(parser) is PydanticOutputParser:
        return shape_of(parser.pydantic_object, found)
    if type(parser) is PydanticToolsParser and parser.first_tool_only and len(parser.tools) == 1:
        return shape_of(parser.tools[0], (*found, {"op": "path", "keys": ["args"]}))
    return None


def structured(function: Any, value: Any) -> Ref | None:
    """The object that ChatOpenAI's structured output by a JSON schema reads from a message.

    None for any other function, and for a class with code of the user.
    """
    if (
        not isinstance(function, partial)
        or not isinstance(value, AnswerMessage)
        or value.form is None
    ):
        return None
    place = function.func.__module__, function.func.__qualname__
    if place != ("langchain_openai.chat_models.base", "_oai_structured_outputs_parser"):
        return None
    kind = value.form.kind
    if kind is None or function.args or function.keywords != {"schema": kind}:
        return None
    data = value.text.then({"op": "json"})
    shape = shape_of(kind, data.transforms)
    return None if shape is None else replace(data, kind=ValueKind.OBJECT, shape=shape)


def has_transform(cls: type[Any]) -> bool:
    """Whether parsers of exactly this class have a transform."""
    return _parts_of(cls) is not None or parsers.has_transform(cls)


def reads_tools(spec: Spec | None) -> bool:
    """Whether a transform reads the message of a call with tools."""
    return spec is not None and spec["op"] == "tool_calls"


@dataclass(frozen=True, slots=True)
class _Parts:
    """How to find a parser's transform, and what LangChain makes of its value."""

    spec: Callable[[Any], Spec]
    kind: ValueKind | None = None


def _parts_of(cls: type[Any]) -> _Parts | None:
    return _CORE.get(cls) or _CLASSIC.get(f"{cls.__module__}.{cls.__qualname__}")


def _tools(parser: Any) -> Spec:
    options = {"first_tool_only": parser.first_tool_only, "return_id": parser.return_id}
    return {"op": "tool_calls", "key_name": getattr(parser, "key_name", None), **options}


def _enum(parser: Any) -> Spec:
    if parser.enum._missing_.__func__ is not Enum._missing_.__func__:  # type: ignore[attr-defined]
        raise CannotCompile(parser, "its enum finds members in a way of its own")
    return {"op": "enum", "values": [member.value for member in parser.enum]}


def _yaml(parser: Any) -> Spec:
    if parser.pattern != type(parser).model_fields["pattern"].default:
        raise CannotCompile(parser, "it has a pattern of its own")
    return {"op": "yaml", "class_name": parser.pydantic_object.__name__}


_CORE: Mapping[type[Any], _Parts] = MappingProxyType(
    {
        PydanticOutputParser: _Parts(lambda _: {"op": "json"}, ValueKind.OBJECT),
        JsonOutputToolsParser: _Parts(_tools),
        JsonOutputKeyToolsParser: _Parts(_tools),
        PydanticToolsParser: _Parts(_tools, ValueKind.OBJECT),
    }
)
# By name, so that langchain-classic is not imported here.
_CLASSIC: Mapping[str, _Parts] = MappingProxyType(
    {
        f"langchain_classic.{name}": _Parts(spec, ValueKind.OBJECT)
        for name, spec in {
            "output_parsers.enum.EnumOutputParser": _enum,
            "output_parsers.datetime.DatetimeOutputParser": lambda parser: {
                "op": "datetime",
                "format": parser.format,
            },
            "output_parsers.yaml.YamlOutputParser": _yaml,
            "chains.flare.prompts.FinishedOutputParser": lambda parser: {
                "op": "finished",
                "finished_value": parser.finished_value,
            },
        }.items()
    }
)
