"""Transforms of a text that contains JSON, as LlamaIndex reads it, and of values to JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    NO_JSON,
    Transform,
    as_text,
    check_json,
    check_text,
    refuse,
)
from weftline.contract.transforms.yaml_text import NO_YAML, is_plain, load_yaml, yaml_module


@dataclass(frozen=True, slots=True)
class JsonObject(Transform):
    """The JSON between the first { and the last } (LlamaIndex's PydanticOutputParser)."""

    op: ClassVar[str] = "json_object"

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < start:
            raise TransformFailed(f"Could not extract json string from output: {text}")
        try:
            parsed = json.loads(text[start : end + 1])
        except RecursionError as error:
            raise TransformFailed(f"ValueError: {NO_JSON}") from error
        except ValueError as error:
            raise TransformFailed(f"Invalid JSON: {error}") from error
        check_json(parsed)
        return parsed


@dataclass(frozen=True, slots=True)
class JsonOrYaml(Transform):
    """The JSON between the outermost brackets, or YAML if that is not JSON.

    LlamaIndex's parsers of sub-questions and of vector store queries read in this way. `fenced`
    looks inside a ```json fence first, which LlamaIndex's parser of selections does not do. YAML
    that cannot be written as JSON fails: dates, keys that are not text, and anchors whose expansion
    is too large. With `key` the value of an object is its entry of that name, if it has one.
    """

    op: ClassVar[str] = "json_or_yaml"
    costly: ClassVar[bool] = True
    fenced: bool = True
    key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.fenced, bool):
            refuse("json_or_yaml's 'fenced' is true or false")
        if self.key is not None:
            check_text(self.key, "json_or_yaml's 'key'")
        yaml_module()

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        if self.fenced and _FENCE in text:
            text = text.split(_FENCE)[1].strip().strip("`").strip()
        found = _between_brackets(text)
        try:
            parsed = json.loads(found)
        except json.JSONDecodeError as error:
            parsed = _read_yaml(found, error)
        except RecursionError as error:
            raise TransformFailed(f"ValueError: {NO_JSON}") from error
        except ValueError as error:  # a number with more than sys.get_int_max_str_digits() digits
            raise TransformFailed(f"ValueError: {error}") from error
        if self.key is not None and isinstance(parsed, dict):
            parsed = parsed.get(self.key, parsed)
        check_json(parsed)
        return parsed

    def closed(self, text: str) -> list[Any]:
        """The objects of the list that are complete, if the text is JSON so far."""
        if self.fenced and _FENCE in text:
            text = text.split(_FENCE)[1]
        start = text.find("[")
        before = text[: max(start, 0)].partition("{")[2].strip()
        # Before the list stands nothing, or the beginning of an object that has only this entry.
        if start < 0 or before not in ("", f'"{self.key}":', f'"{self.key}" :'):
            return []
        return list(_objects(text, start + 1))


_FENCE = "```json"
_DECODER = json.JSONDecoder()
_OBJECT = re.compile(r"\s*,?\s*\{")


def _objects(text: str, at: int) -> Iterator[Any]:
    """The complete objects of a list whose first item begins at `at`."""
    while (item := _OBJECT.match(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, item.end() - 1)
        except (ValueError, RecursionError):
            return
        yield value


def _between_brackets(text: str) -> str:
    """The text from the first bracket to the last one that closes it; empty if there is none."""
    text = text.strip()
    square, brace = text.find("["), text.find("{")
    is_list = 0 <= square < brace or brace < 0
    start, end = (square, text.rfind("]")) if is_list else (brace, text.rfind("}"))
    # If one of the two brackets is missing, Python's slice gives the same text as LlamaIndex does.
    return text[start : end + 1]


def _read_yaml(text: str, before: json.JSONDecodeError) -> Any:
    try:
        parsed = load_yaml(text, JsonOrYaml.op)
    except yaml_module().YAMLError as error:
        raise TransformFailed(
            f"Got invalid JSON object. Error: {before} {error}. Got JSON string: {text}"
        ) from error
    if not is_plain(parsed, len(text) + 1):
        raise TransformFailed(f"ValueError: {NO_YAML}")
    return parsed


@dataclass(frozen=True, slots=True)
class JsonText(Transform):
    """The value as JSON text without spaces, as pydantic's model_dump_json shows it."""

    op: ClassVar[str] = "json_text"

    def apply(self, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
