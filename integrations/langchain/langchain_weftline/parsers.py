"""Which transform does what a LangChain parser does: weftline's own table, with our error."""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import BaseOutputParser

from langchain_weftline.symbols import CannotCompile, Spec
from weftline import parsers
from weftline.parsers import has_transform

__all__ = ["has_transform", "parser_spec"]


def parser_spec(parser: BaseOutputParser[Any]) -> Spec | None:
    """The transform that does what `parser` does, None if it is to do nothing.

    Raises CannotCompile where its settings ask for what no transform does.
    """
    try:
        return parsers.parser_spec(parser)
    except parsers.NoTransform as error:
        raise CannotCompile(error.parser, error.reason) from error
