"""Transforms of a text with JSON somewhere in it, as LlamaIndex reads it, and back to JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.errors import TransformFailed
from weftline.transforms.base import (
    NO_JSON,
    Transform,
    as_text,
    check_json,
    refuse,
)
from weftline.transforms.yaml_text import NO_YAML, is_plain, load_yaml, yaml_module


@dataclass(frozen=True, slots=True)
class JsonObject(Transform):
    """The JSON between the first { and the last } (PydanticOutputParser of LlamaIndex)."""

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
    """The JSON between the outermost brackets, read as YAML where it is none.

    What LlamaIndex's parsers of sub-questions and of vector store queries read; without `fenced`
    what its parser of selections does, which knows no ```json. What YAML has and JSON has not
    (dates, keys that are no text, anchors that multiply) fails.
    """

    op: ClassVar[str] = "json_or_yaml"
    fenced: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.fenced, bool):
            refuse("json_or_yaml's 'fenced' is true or false")
        yaml_module()

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        if self.fenced and "```json" in text:
            text = text.split("```json")[1].strip().strip("`").strip()
        found = _between_brackets(text)
        try:
            parsed = json.loads(found)
        except json.JSONDecodeError as error:
            parsed = _read_yaml(found, error)
        except RecursionError as error:
            raise TransformFailed(f"ValueError: {NO_JSON}") from error
        except ValueError as error:  # a number of more than sys.get_int_max_str_digits() digits
            raise TransformFailed(f"ValueError: {error}") from error
        check_json(parsed)
        return parsed


def _between_brackets(text: str) -> str:
    """From the first bracket to the last that closes its kind; nothing if there is none."""
    text = text.strip()
    square, brace = text.find("["), text.find("{")
    is_list = 0 <= square < brace or brace < 0
    start, end = (square, text.rfind("]")) if is_list else (brace, text.rfind("}"))
    # Without the bracket that opens, or the one that closes, Python's slice is what LlamaIndex has.
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
    """The value as JSON text without spaces, which is how pydantic's model_dump_json shows it."""

    op: ClassVar[str] = "json_text"

    def apply(self, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
