"""The transforms that replace LlamaIndex's output parsers.

Only exact classes count, because a subclass may override anything. A transform makes the data, and
the client builds the parser's objects from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llama_index.core.indices.vector_store.retrievers.auto_retriever.output_parser import (
    VectorStoreQueryOutputParser,
)
from llama_index.core.output_parsers import PydanticOutputParser, SelectionOutputParser
from llama_index.core.question_gen.output_parser import SubQuestionOutputParser
from llama_index.llms.weftline.plan.answer_symbols import Spec

from weftline.kit.parsers import NoTransform, parser_spec

_OF_OBJECTS: Mapping[type[Any], Spec] = MappingProxyType(
    {
        PydanticOutputParser: {"op": "json_object"},
        SelectionOutputParser: {"op": "json_or_yaml", "fenced": False},
        SubQuestionOutputParser: {"op": "json_or_yaml"},
        VectorStoreQueryOutputParser: {"op": "json_or_yaml"},
    }
)
# The class by name, because it is in another distribution.
_LANGCHAIN = "llama_index.output_parsers.langchain.base.LangchainOutputParser"


def transforms_of(parser: object) -> tuple[Spec, ...]:
    """The transforms that do the work of `parser` up to the building of objects.

    Raises weftline.kit.parsers.NoTransform for a class or settings that no transform covers.
    """
    spec = _OF_OBJECTS.get(type(parser))
    if spec is not None:
        return (spec,)
    if not _wraps(parser):
        raise NoTransform(parser, "its class is not known")
    found = parser_spec(getattr(parser, "_output_parser", None))
    return () if found is None else (found,)


def text_of(parser: object) -> tuple[Spec, ...] | None:
    """The transforms that give str(parser.parse(answer)), which is what LLM.predict returns.

    The result is None if that text is Python's representation of an object. Raises NoTransform.
    """
    specs = transforms_of(parser)
    if type(parser) in _OF_OBJECTS:
        return None
    return (*specs, {"op": "str"}) if specs else ()


def _wraps(parser: object) -> bool:
    """Whether `parser` is LlamaIndex's own wrapper of LangChain's parsers."""
    cls = type(parser)
    return f"{cls.__module__}.{cls.__qualname__}" == _LANGCHAIN
