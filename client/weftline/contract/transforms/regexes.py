"""Transforms by pattern: the groups of one match, or a value for each of several labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    MAX_KEYS,
    Transform,
    as_text,
    check_text,
    check_texts,
    refuse,
)
from weftline.contract.transforms.patterns import MAX_READ_CHARS, search_for


def _readable(value: Any, op: str) -> str:
    text = as_text(value, op, MAX_READ_CHARS)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TransformFailed(f"{op} reads text, and a lone surrogate is none") from error
    return text


@dataclass(frozen=True, slots=True)
class Regex(Transform):
    """The groups of the pattern's first match, by `output_keys` (RegexParser).

    Without a match the text goes to `default_output_key`, if there is one.
    """

    op: ClassVar[str] = "regex"
    costly: ClassVar[bool] = True
    regex: str
    output_keys: tuple[str, ...]
    default_output_key: str | None = None

    def __post_init__(self) -> None:
        check_text(self.regex, "regex's 'regex'")
        check_texts(self.output_keys, "regex's 'output_keys'", MAX_KEYS)
        if self.default_output_key is not None:
            check_text(self.default_output_key, "regex's 'default_output_key'")

    def prepare(self) -> None:
        search_for(self.regex)

    def apply(self, value: Any) -> Any:
        text = _readable(value, self.op)
        groups = search_for(self.regex).first(text)
        if groups is not None:
            if len(groups) < len(self.output_keys):
                raise TransformFailed("IndexError: no such group")
            return dict(zip(self.output_keys, groups, strict=False))
        if self.default_output_key is None:
            raise TransformFailed(f"Could not parse output: {text}")
        return {key: text if key == self.default_output_key else "" for key in self.output_keys}


_LABELLED = r"{}:\s?([^.'\n']*)\.?"
_INDENT = " " * 24  # LangChain's messages contain the indentation of LangChain's source


@dataclass(frozen=True, slots=True)
class RegexDict(Transform):
    """The text after each label of `output_key_to_format` (RegexDictParser).

    Each label must occur exactly once. A value that equals `no_update_value` is left out.
    """

    op: ClassVar[str] = "regex_dict"
    costly: ClassVar[bool] = True
    output_key_to_format: tuple[tuple[str, str], ...]
    no_update_value: str | None = None
    regex_pattern: str = _LABELLED

    def __post_init__(self) -> None:
        given: object = self.output_key_to_format
        if not isinstance(given, Mapping) or not 0 < len(given) <= MAX_KEYS:
            refuse(f"regex_dict's 'output_key_to_format' is an object of 1 to {MAX_KEYS} labels")
        labels = tuple(given.items())
        object.__setattr__(self, "output_key_to_format", labels)
        for key, label in labels:
            check_text(key, "each key of regex_dict's 'output_key_to_format'")
            check_text(label, "each label of regex_dict's 'output_key_to_format'")
        if self.no_update_value is not None:
            check_text(self.no_update_value, "regex_dict's 'no_update_value'")
        check_text(self.regex_pattern, "regex_dict's 'regex_pattern'")
        if self.regex_pattern != _LABELLED:
            self._check_braces()

    def _check_braces(self) -> None:
        if self.regex_pattern.count("{}") > 1 or set("{}") & set(
            self.regex_pattern.replace("{}", "")
        ):
            refuse(
                "regex_dict's 'regex_pattern' has one {} for the label and no other brace: leave "
                "the parser to the client"
            )

    def prepare(self) -> None:
        if self.regex_pattern == _LABELLED:
            return
        for _, label in self.output_key_to_format:
            pattern = search_for(self._pattern_of(label)).pattern
            if pattern.groups > 1 or pattern.nullable or pattern.anchored:
                refuse(
                    "regex_dict's 'regex_pattern' has at most one group, is never empty and has "
                    "no anchor: leave the parser to the client"
                )

    def _pattern_of(self, label: str) -> str:
        return self.regex_pattern.replace("{}", re.escape(label))

    def _matches(self, label: str, text: str) -> list[str]:
        pattern = self._pattern_of(label)
        # LangChain's default pattern always matches after the label, so `re` takes linear time.
        if self.regex_pattern == _LABELLED:
            return re.findall(pattern, text)
        return search_for(pattern).every(text)

    def apply(self, value: Any) -> Any:
        text = _readable(value, self.op)
        found: dict[str, str] = {}
        for key, label in self.output_key_to_format:
            match = self._only_match(key, label, text)
            if self.no_update_value is None or match != self.no_update_value:
                found[key] = match
        return found

    def _only_match(self, key: str, label: str, text: str) -> str:
        matches = self._matches(label, text)
        if not matches:
            raise TransformFailed(
                f"No match found for output key: {key} with expected format "
                f"{_INDENT}{label} on text {text}"
            )
        if len(matches) > 1:
            raise TransformFailed(
                f"Multiple matches found for output key: {key} with "
                f"{_INDENT}expected format {label} on text {text}"
            )
        return matches[0]
