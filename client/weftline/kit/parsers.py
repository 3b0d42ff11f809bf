"""The transform that replaces a LangChain parser, by the full name of the parser's exact class.

A subclass has no transform, because it may override anything. Classes are compared by name, so that
LangChain is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weftline.contract import transforms
from weftline.contract.errors import InvalidRequest

Spec = dict[str, Any]
"""A transform as data (weftline.contract.transforms)."""


class NoTransform(ValueError):
    """The server cannot run a parser. The message says why."""

    def __init__(self, parser: object, reason: str) -> None:
        self.parser = parser
        self.reason = reason
        super().__init__(f"{type(parser).__name__} has no transform: {reason}")


def parser_spec(parser: Any) -> Spec | None:
    """The transform that replaces `parser`, or None if it needs none.

    Raises NoTransform if no transform does the same as its class with these settings.
    """
    make = _PARSERS.get(_full_name(type(parser)))
    if make is None:
        raise NoTransform(parser, "its class is not known")
    spec = make(parser)
    if spec is None:
        return None
    try:
        transforms.parse(spec)
    except InvalidRequest as error:
        raise NoTransform(parser, error.message) from error
    return spec


def has_transform(cls: type[Any]) -> bool:
    """Whether parsers of exactly this class have a transform."""
    return _full_name(cls) in _PARSERS


def _full_name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _list(op: str) -> Callable[[Any], Spec]:
    def spec(parser: Any) -> Spec:
        pattern = type(parser).model_fields.get("pattern")
        if pattern is not None and parser.pattern != pattern.default:
            raise NoTransform(parser, "it has a pattern of its own")
        return {"op": op}

    return spec


def _xml(parser: Any) -> Spec:
    if parser.parser != "defusedxml":
        raise NoTransform(parser, "it does not use defusedxml")
    return {"op": "xml"}


def _fields(op: str, *names: str) -> Callable[[Any], Spec]:
    """A function from a parser to a transform `op` with these settings of the parser."""
    return lambda parser: {"op": op, **{name: getattr(parser, name) for name in names}}


def _structured(parser: Any) -> Spec:
    return {"op": "structured", "keys": [schema.name for schema in parser.response_schemas]}


def _router(parser: Any) -> Spec:
    if parser.next_inputs_type is not str:
        raise NoTransform(parser, "its inputs are not text")
    return _fields("router", "default_destination", "next_inputs_inner_key")(parser)


def _combining(parser: Any) -> Spec:
    specs = [parser_spec(one) if has_transform(type(one)) else None for one in parser.parsers]
    if None in specs:
        raise NoTransform(parser, "it combines a parser that has no transform")
    return {"op": "combining", "parsers": specs}


# Parsers whose values are Python objects (such as an enum's member or a datetime) are not listed.
_PARSERS: Mapping[str, Callable[[Any], Spec | None]] = MappingProxyType(
    {
        f"langchain_{name}": make
        for name, make in {
            "core.output_parsers.string.StrOutputParser": lambda parser: None,
            "core.output_parsers.json.JsonOutputParser": _fields("json"),
            "core.output_parsers.list.CommaSeparatedListOutputParser": _list("comma_list"),
            "core.output_parsers.list.NumberedListOutputParser": _list("numbered_list"),
            "core.output_parsers.list.MarkdownListOutputParser": _list("markdown_list"),
            "core.output_parsers.xml.XMLOutputParser": _xml,
            "classic.output_parsers.boolean.BooleanOutputParser": _fields(
                "boolean", "true_val", "false_val"
            ),
            "classic.output_parsers.regex.RegexParser": _fields(
                "regex", "regex", "output_keys", "default_output_key"
            ),
            "classic.output_parsers.regex_dict.RegexDictParser": _fields(
                "regex_dict", "output_key_to_format", "no_update_value", "regex_pattern"
            ),
            "classic.output_parsers.structured.StructuredOutputParser": _structured,
            "classic.output_parsers.combining.CombiningOutputParser": _combining,
            "classic.retrievers.multi_query.LineListOutputParser": _fields("line_list"),
            "classic.chains.router.llm_router.RouterOutputParser": _router,
            "classic.retrievers.document_compressors.chain_extract.NoOutputParser": _fields(
                "no_output", "no_output_str"
            ),
        }.items()
    }
)
