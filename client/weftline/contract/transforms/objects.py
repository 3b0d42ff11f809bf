"""Transforms of a text that holds one object: JSON, which may need certain keys, and XML."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    MAX_DEPTH,
    MAX_KEYS,
    MAX_PARSED_CHARS,
    NO_JSON,
    Transform,
    as_text,
    check_json,
    check_text,
    check_texts,
    package,
)
from weftline.contract.transforms.partial_json import closed_values, parse_json_text


@dataclass(frozen=True, slots=True)
class Json(Transform):
    """The JSON value in the text, fenced, cut off or bare (JsonOutputParser).

    NaN, infinities, lone surrogates and deep nesting fail, although Python's parser accepts them: a
    JSON body cannot carry the first three, and deep nesting would fail later.
    """

    op: ClassVar[str] = "json"

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op).strip()
        try:
            parsed = _read(text)
        except json.JSONDecodeError as error:
            raise TransformFailed(f"Invalid json output: {text}") from error
        check_json(parsed)
        return parsed

    def closed(self, text: str) -> list[Any]:
        """The values of a list so far, up to the first that is not JSON or not complete."""
        return closed_values(text)


@dataclass(frozen=True, slots=True)
class Structured(Transform):
    """The JSON object in the text, which must have all of `keys` (StructuredOutputParser)."""

    op: ClassVar[str] = "structured"
    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        check_texts(self.keys, "structured's 'keys'", MAX_KEYS)

    def apply(self, value: Any) -> Any:
        try:
            parsed = _read(as_text(value, self.op))
        except json.JSONDecodeError as error:
            raise TransformFailed(f"Got invalid JSON object. Error: {error}") from error
        if not isinstance(parsed, dict):
            # The parser's own message ends with a space.
            got = type(parsed).__name__
            raise TransformFailed(f"Expected JSON object (dict), but got: {got}. ")
        for key in self.keys:
            if key not in parsed:
                raise TransformFailed(
                    f"Got invalid return object. Expected key `{key}` to be present, "
                    f"but got {parsed}"
                )
        check_json(parsed)
        return parsed


@dataclass(frozen=True, slots=True)
class Router(Transform):
    """The destination and its input, from the JSON in the text (RouterOutputParser)."""

    op: ClassVar[str] = "router"
    default_destination: str = "DEFAULT"
    next_inputs_inner_key: str = "input"

    def __post_init__(self) -> None:
        check_text(self.default_destination, "router's 'default_destination'")
        check_text(self.next_inputs_inner_key, "router's 'next_inputs_inner_key'")

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        try:
            parsed = _EXPECTED.apply(text)
        except TransformFailed as error:
            raise self._failed(text, error.message.removeprefix("ValueError: ")) from error
        wanted, given = parsed["destination"], parsed["next_inputs"]
        if not isinstance(wanted, str):
            raise self._failed(text, "Expected 'destination' to be a string.")
        if not isinstance(given, str):
            raise self._failed(text, f"Expected 'next_inputs' to be {str}.")
        is_default = wanted.strip().lower() == self.default_destination.lower()
        return {
            **parsed,
            "destination": None if is_default else wanted.strip(),
            "next_inputs": {self.next_inputs_inner_key: given},
        }

    def _failed(self, text: str, reason: str) -> TransformFailed:
        return TransformFailed(f"Parsing text\n{text}\n raised following error:\n{reason}")


_EXPECTED = Structured(("destination", "next_inputs"))


def _read(text: str) -> Any:
    try:
        return parse_json_text(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise TransformFailed(f"ValueError: {NO_JSON}") from error
    except ValueError as error:  # a number of more than sys.get_int_max_str_digits() digits
        raise TransformFailed(f"ValueError: {error}") from error


_FENCED = re.compile(r"```(xml)?(.*)```", re.DOTALL)
MAX_ELEMENTS_DEEP = MAX_DEPTH // 2  # an element is an object in a list


@dataclass(frozen=True, slots=True)
class Xml(Transform):
    """The XML in the text, fenced or bare, as nested objects (XMLOutputParser).

    The package defusedxml reads the XML: a document that declares entities fails, as it does in
    LangChain.
    """

    op: ClassVar[str] = "xml"

    def __post_init__(self) -> None:
        _defused()

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op, MAX_PARSED_CHARS)
        if (fenced := _FENCED.search(text)) is not None:
            text = fenced.group(2)
        text = _after_declaration(text).strip()
        defused = _defused()
        try:
            return _element(defused.fromstring(text), MAX_ELEMENTS_DEEP)
        except defused.ParseError as error:
            raise TransformFailed(
                f"Failed to parse XML format from completion {text}. Got: {error}"
            ) from error
        except ValueError as error:  # entities, which defusedxml forbids, and lone surrogates
            raise TransformFailed(str(error)) from error


def _defused() -> ModuleType:
    return package("defusedxml.ElementTree", "transform 'xml'", "defusedxml")


def _after_declaration(text: str) -> str:
    r"""The text after the first tag that contains `encoding` and ends its line, or all of it.

    The function does the work of LangChain's <([^>]*encoding[^>]*)>\n(.*) in linear time.
    LangChain's pattern takes quadratic time on a text with many '<'.
    """
    start = 0
    while (end := text.find(">", start)) >= 0:
        opened = text.find("<", start, end)
        if (
            opened >= 0
            and text.find("encoding", opened + 1, end) >= 0
            and text.startswith("\n", end + 1)
        ):
            return text[end + 2 :]
        start = end + 1
    return text


def _element(element: Any, depth: int) -> dict[str, Any]:
    """An element with text is its text. Any other is a list of its children."""
    if depth == 0:
        raise TransformFailed(
            f"the XML has more than {MAX_ELEMENTS_DEEP} levels, which cannot be sent on"
        )
    if element.text and not element.text.isspace():
        return {element.tag: element.text}
    children = [
        _element(child, depth - 1) if len(child) else {child.tag: child.text} for child in element
    ]
    return {element.tag: children}
