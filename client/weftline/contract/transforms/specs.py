"""Parses the specs of transforms, and applies a list of them to a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import MAX_TEXT_CHARS, Transform, as_text, check_json, refuse
from weftline.contract.transforms.choices import Boolean, Choice, Datetime, FinishedAnswer, NoOutput
from weftline.contract.transforms.hits import NodeItems, NodeTexts, Texts
from weftline.contract.transforms.lists import (
    CommaList,
    LineList,
    MarkdownList,
    NumberedList,
    QueryList,
)
from weftline.contract.transforms.loose_json import JsonObject, JsonOrYaml, JsonText
from weftline.contract.transforms.messages import ToolCalls
from weftline.contract.transforms.methods import Get, Len, TextMethod
from weftline.contract.transforms.objects import Json, Router, Structured, Xml
from weftline.contract.transforms.plain import Join, Path, Repr, Str, String, Strip
from weftline.contract.transforms.regexes import Regex, RegexDict
from weftline.contract.transforms.yaml_text import Yaml

# Limits the cost of one list of specs: repr can double the length of a text, join multiply it.
MAX_SPECS = 16
# The ops below give objects. LangChain's combining parser refuses lists and fails for other values.
COMBINED = ("json", "structured", "xml", "regex", "regex_dict")


@dataclass(frozen=True, slots=True)
class Combining(Transform):
    """One object of all those in the text's paragraphs (CombiningOutputParser).

    Each of `parsers` reads one paragraph.
    """

    op: ClassVar[str] = "combining"
    costly: ClassVar[bool] = True
    parsers: tuple[Transform, ...]

    def __post_init__(self) -> None:
        specs: Any = self.parsers
        if not isinstance(specs, tuple) or not 2 <= len(specs) <= MAX_SPECS:
            refuse(f"combining takes 'parsers', a list of 2 to {MAX_SPECS} transforms")
        parsers = tuple(read(spec) for spec in specs)
        for parser in parsers:
            if parser.op not in COMBINED:
                refuse(f"combining takes {', '.join(COMBINED)}, not {parser.op}")
        object.__setattr__(self, "parsers", parsers)

    def prepare(self) -> None:
        for parser in self.parsers:
            parser.prepare()

    def apply(self, value: Any) -> Any:
        made: dict[str, Any] = {}
        paragraphs = as_text(value, self.op).split("\n\n")
        for paragraph, parser in zip(paragraphs, self.parsers, strict=False):
            found = _apply(parser, paragraph.strip())
            try:
                made.update(found)
            except (TypeError, ValueError) as error:
                raise TransformFailed(f"{type(error).__name__}: {error}") from error
        if not all(isinstance(key, str) for key in made):  # update takes lists of pairs, too
            raise TransformFailed("combining made an object whose keys are not all text")
        check_json(made)
        return made


_ALL: tuple[type[Transform], ...] = (
    String,
    Json,
    JsonObject,
    JsonOrYaml,
    JsonText,
    Yaml,
    Path,
    CommaList,
    NumberedList,
    MarkdownList,
    LineList,
    QueryList,
    Xml,
    Boolean,
    Datetime,
    Choice,
    Regex,
    RegexDict,
    Structured,
    Combining,
    Router,
    NoOutput,
    FinishedAnswer,
    ToolCalls,
    Str,
    Repr,
    Join,
    Strip,
    Texts,
    NodeTexts,
    NodeItems,
    TextMethod,
    Get,
    Len,
)
OPS: Mapping[str, type[Transform]] = MappingProxyType({cls.op: cls for cls in _ALL})


def parse(spec: Mapping[str, Any]) -> Transform:
    """The transform that `spec` describes, ready to be applied.

    Raises InvalidRequest for an unknown op or option, and for a pattern that cannot be compiled.
    """
    transform = read(spec)
    transform.prepare()
    return transform


def read(spec: Mapping[str, Any]) -> Transform:
    """The transform that `spec` describes, without compiling it, which may take a second.

    Raises InvalidRequest for an unknown op or option.
    """
    if not isinstance(spec, Mapping):
        refuse("a transform is an object with an 'op'")
    name = spec.get("op")
    cls = OPS.get(name) if isinstance(name, str) else None
    if cls is None:
        refuse(f"unknown transform {str(name)[:40]!r}: use one of {', '.join(OPS)}")
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec.items()
        if key != "op"
    }
    fields = {field.name: field.default for field in dataclasses.fields(cls)}
    if unknown := options.keys() - fields.keys():
        refuse(f"transform {name!r} has no option {str(min(unknown, key=str))[:40]!r}")
    needed = {field for field, default in fields.items() if default is dataclasses.MISSING}
    if missing := needed - options.keys():
        refuse(f"transform {name!r} needs its option {min(missing)!r}")
    return cls(**options)


def _apply(transform: Transform, value: Any) -> Any:
    try:
        return transform.apply(value)
    except TransformFailed as error:
        error.param = error.param or transform.op
        raise


def run(specs: Sequence[Mapping[str, Any]], value: Any) -> Any:
    """`value` after each of `specs`, in order.

    Raises TransformFailed, whose `param` is the transform's op. Its message is the one of the
    framework's own parser. Where that parser raises a Python error, it is like "KeyError: 'x'".
    """
    if len(specs) > MAX_SPECS:
        refuse(f"at most {MAX_SPECS} transforms in a row, got {len(specs)}")
    for spec in specs:
        transform = parse(spec)
        value = _apply(transform, value)
        if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
            raise TransformFailed(
                f"{transform.op} made more than {MAX_TEXT_CHARS} characters; shorten its input"
            )
    return value
