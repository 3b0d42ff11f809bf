"""Transforms of a text with JSON somewhere in it, as LlamaIndex reads it, and back to JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from weftline.errors import TransformFailed
from weftline.transforms.base import (
    MAX_DEPTH,
    NO_JSON,
    Transform,
    as_text,
    check_json,
    refuse,
)

# PyYAML is written in Python: at its slowest it took 1.9 s for 65,536 of them.
MAX_YAML_CHARS = 1 << 15


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
        _yaml()

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
    yaml = _yaml()
    if len(text) > MAX_YAML_CHARS:
        raise TransformFailed(f"json_or_yaml reads at most {MAX_YAML_CHARS} characters as YAML")
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TransformFailed(
            f"Got invalid JSON object. Error: {before} {error}. Got JSON string: {text}"
        ) from error
    except RecursionError as error:
        raise TransformFailed(f"ValueError: {NO_JSON}") from error
    except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        # What PyYAML lets through: a 13th month, a number without digits.
        raise TransformFailed(f"{type(error).__name__}: {error}") from error
    if not _is_plain(parsed, len(text) + 1):
        raise TransformFailed(f"ValueError: {NO_YAML}")
    return parsed


def _is_plain(value: Any, most: int) -> bool:
    """Whether this is JSON of at most `most` values, those of anchors counted out.

    Without anchors a text has no more values than characters.
    """
    waiting = [(value, MAX_DEPTH)]
    while waiting:
        item, depth = waiting.pop()
        most -= 1
        if depth < 0 or most < 0:
            return False
        if isinstance(item, dict) and all(isinstance(key, str) for key in item):
            waiting.extend((inner, depth - 1) for inner in item.values())
        elif isinstance(item, list):
            waiting.extend((inner, depth - 1) for inner in item)
        elif not (item is None or isinstance(item, (str, int, float))):
            return False
    return True


NO_YAML = (
    "the YAML holds dates, keys that are no text, anchors that multiply or more than "
    f"{MAX_DEPTH} levels, which cannot be sent on; ask the model for plain JSON"
)


def _yaml() -> ModuleType:
    try:
        import yaml
    except ModuleNotFoundError:
        refuse("transform 'json_or_yaml' needs PyYAML: run `pip install pyyaml`")
    found: ModuleType = yaml
    return found


@dataclass(frozen=True, slots=True)
class JsonText(Transform):
    """The value as JSON text without spaces, which is how pydantic's model_dump_json shows it."""

    op: ClassVar[str] = "json_text"

    def apply(self, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
