"""Which transform does what a LangChain parser does, by the parser's exact class.

A subclass may override anything, so it is left to the client. Classes of langchain-classic are
known by name: whoever has one has imported it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from langchain_core.output_parsers import (
    BaseOutputParser,
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    StrOutputParser,
    XMLOutputParser,
)

from langchain_weftline.symbols import CannotCompile, Spec
from weftline import transforms
from weftline.errors import InvalidRequest

Parser = BaseOutputParser[Any]


def parser_spec(parser: Parser) -> Spec | None:
    """The transform that does what `parser` does, None if it is to do nothing.

    Raises CannotCompile where its settings ask for what no transform does.
    """
    make = _CORE.get(type(parser)) or _CLASSIC[_full_name(type(parser))]
    spec = make(parser)
    if spec is None:
        return None
    try:
        transforms.parse(spec)
    except InvalidRequest as error:
        raise CannotCompile(parser, error.message) from error
    return spec


def has_transform(cls: type[Any]) -> bool:
    """Whether parsers of exactly this class have a transform."""
    return cls in _CORE or _full_name(cls) in _CLASSIC


def _full_name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _json(parser: Parser) -> Spec:
    return {"op": "json"}


def _list(op: str) -> Callable[[Any], Spec]:
    def spec(parser: Any) -> Spec:
        pattern = type(parser).model_fields.get("pattern")
        if pattern is not None and parser.pattern != pattern.default:
            raise CannotCompile(parser, "it has a pattern of its own")
        return {"op": op}

    return spec


def _xml(parser: XMLOutputParser) -> Spec:
    if parser.parser != "defusedxml":
        raise CannotCompile(parser, "it does not read by defusedxml")
    return {"op": "xml"}


_CORE: Mapping[type[Any], Callable[[Any], Spec | None]] = MappingProxyType(
    {
        StrOutputParser: lambda parser: None,
        JsonOutputParser: _json,
        CommaSeparatedListOutputParser: _list("comma_list"),
        NumberedListOutputParser: _list("numbered_list"),
        MarkdownListOutputParser: _list("markdown_list"),
        XMLOutputParser: _xml,
    }
)


def _fields(op: str, *names: str) -> Callable[[Any], Spec]:
    """The transform `op` with the parser's own settings of these names."""
    return lambda parser: {"op": op, **{name: getattr(parser, name) for name in names}}


def _structured(parser: Any) -> Spec:
    return {"op": "structured", "keys": [schema.name for schema in parser.response_schemas]}


def _combining(parser: Any) -> Spec:
    specs = [parser_spec(one) if has_transform(type(one)) else None for one in parser.parsers]
    if None in specs:
        raise CannotCompile(parser, "it combines a parser that has no transform")
    return {"op": "combining", "parsers": specs}


# Those whose values are objects of Python's (an enum's member, a datetime) stay in the client.
_CLASSIC: Mapping[str, Callable[[Any], Spec]] = MappingProxyType(
    {
        f"langchain_classic.{name}": make
        for name, make in {
            "output_parsers.boolean.BooleanOutputParser": _fields(
                "boolean", "true_val", "false_val"
            ),
            "output_parsers.regex.RegexParser": _fields(
                "regex", "regex", "output_keys", "default_output_key"
            ),
            "output_parsers.regex_dict.RegexDictParser": _fields(
                "regex_dict", "output_key_to_format", "no_update_value", "regex_pattern"
            ),
            "output_parsers.structured.StructuredOutputParser": _structured,
            "output_parsers.combining.CombiningOutputParser": _combining,
            "retrievers.multi_query.LineListOutputParser": _fields("line_list"),
        }.items()
    }
)
