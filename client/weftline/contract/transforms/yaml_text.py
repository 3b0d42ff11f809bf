"""The transform of YAML in a model's answer. PyYAML's safe_load reads it, within bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from types import ModuleType
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    MAX_DEPTH,
    NO_JSON,
    Transform,
    as_text,
    check_json,
    check_text,
    package,
)

# PyYAML is written in Python. The slowest text of 65,536 characters that was found took 1.9 s.
MAX_YAML_CHARS = 1 << 15

NO_YAML = (
    "the YAML holds dates, keys that are no text, anchors that multiply or more than "
    f"{MAX_DEPTH} levels, which cannot be sent on; ask the model for plain JSON"
)
TOO_MUCH = (
    f"the YAML holds anchors that multiply or more than {MAX_DEPTH} levels; "
    "ask the model for plain data"
)


def yaml_module() -> ModuleType:
    """PyYAML, which the transforms of YAML need.

    Raises InvalidRequest where it is not installed.
    """
    return package("yaml", "a transform of YAML", "pyyaml")


def load_yaml(text: str, op: str) -> Any:
    """The result of safe_load. Raises PyYAML's YAMLError where `text` is not YAML."""
    if len(text) > MAX_YAML_CHARS:
        raise TransformFailed(f"{op} reads at most {MAX_YAML_CHARS} characters as YAML")
    try:
        return yaml_module().safe_load(text)
    except RecursionError as error:
        raise TransformFailed(f"ValueError: {NO_JSON}") from error
    except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        # PyYAML does not catch the errors of, for example, a 13th month or a number without digits.
        raise TransformFailed(f"{type(error).__name__}: {error}") from error


_OF_JSON = (str, int, float, type(None))
_OF_YAML = (*_OF_JSON, bytes, date)


def is_plain(value: Any, most: int, scalars: tuple[type, ...] = _OF_JSON) -> bool:
    """Whether `value` consists of `scalars` and has at most `most` values, with anchors expanded.

    A text without anchors never has more values than characters.
    """
    waiting = [(value, MAX_DEPTH)]
    while waiting:
        item, depth = waiting.pop()
        most -= 1
        if depth < 0 or most < 0:
            return False
        if isinstance(item, dict):
            if scalars is _OF_JSON and not all(isinstance(key, str) for key in item):
                return False
            waiting.extend((inner, depth - 1) for inner in item.values())
        elif isinstance(item, list) or (scalars is _OF_YAML and isinstance(item, (set, tuple))):
            waiting.extend((inner, depth - 1) for inner in item)
        elif not isinstance(item, scalars):
            return False
    return True


_FENCED = re.compile(r"^```(?:ya?ml)?([^`]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Yaml(Transform):
    """The YAML in the first fence of the text, or in all of it (YamlOutputParser).

    `class_name` names the class that the client builds from the text. With it, the value is the
    text itself, after a check that it is YAML. So dates and keys that are not text reach the client
    unchanged. Anchors whose expansion is too large fail in both cases.
    """

    op: ClassVar[str] = "yaml"
    costly: ClassVar[bool] = True
    class_name: str | None = None

    def __post_init__(self) -> None:
        if self.class_name is not None:
            check_text(self.class_name, "yaml's 'class_name'")
        yaml_module()

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        fenced = _FENCED.search(text.strip())
        found = text if fenced is None else fenced.group(1)
        try:
            parsed = load_yaml(found, self.op)
        except yaml_module().YAMLError as error:
            name = self.class_name or "YAML"
            raise TransformFailed(
                f"Failed to parse {name} from completion {text}. Got: {error}"
            ) from error
        if self.class_name is not None:
            if not is_plain(parsed, len(found) + 1, _OF_YAML):
                raise TransformFailed(f"ValueError: {TOO_MUCH}")
            return text
        if not is_plain(parsed, len(found) + 1):
            raise TransformFailed(f"ValueError: {NO_YAML}")
        check_json(parsed)
        return parsed
