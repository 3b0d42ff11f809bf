"""Which transform does what a LangChain parser does, by the parser's exact class.

A subclass may override anything, so it is left to the client. Classes of langchain-classic are
known by name: whoever has one has imported it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    spec = _CORE[type(parser)](parser)
    if spec is None:
        return None
    try:
        transforms.parse(spec)
    except InvalidRequest as error:
        raise CannotCompile(parser, error.message) from error
    return spec


def parsers() -> Iterable[type[Any]]:
    """The classes that have a transform."""
    return _CORE.keys()


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
