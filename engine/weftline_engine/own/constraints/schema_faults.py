"""Finds which part of a JSON schema cannot be followed, for the message to its author."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# A look into one part compiles it, which takes about a millisecond. Beyond so many parts the
# message names the part that was found so far.
MOST_LOOKS = 256
MOST_SHOWN = 200  # characters of a pattern

_SHARED = ("$defs", "definitions")
_BY_NAME = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_ONE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
        "unevaluatedProperties", "unevaluatedItems", "additionalItems")  # fmt: skip
_SEVERAL = ("prefixItems", "items", "anyOf", "oneOf", "allOf")

# Why a schema, or a pattern, cannot be followed; "" if it can.
Judge = Callable[[Any], str]


def fault(schema: dict[str, Any], judge: Judge, judge_pattern: Judge) -> str:
    """The path of the smallest part of `schema` that fails alone, and why. "" if none does."""
    shared: dict[str, Any] = {name: schema[name] for name in _SHARED if name in schema}
    looks = MOST_LOOKS
    path: list[str] = []
    part, reason = schema, ""
    descending = True
    while descending:
        descending = False
        for place, child in _parts(part):
            looks -= 1
            if looks < 0:
                break
            if _needs_the_whole(child, shared):
                continue  # alone it would fail for what it lacks
            found = judge({**shared, **child})
            if found:
                path += place
                part, reason, descending = child, found, True
                break
    for name, pattern in _patterns(part):
        if found := judge_pattern(pattern):
            return f"{'.'.join([*path, name])}: the pattern {pattern[:MOST_SHOWN]!r}: {found}"
    return f"{'.'.join(path)}: {reason}" if path else ""


def _needs_the_whole(part: dict[str, Any], shared: dict[str, Any]) -> bool:
    """Whether a part refers to a place of the whole schema that is not among what is `shared`."""
    waiting: list[Any] = [part]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            reference = str(value.get("$ref", ""))
            place = reference.removeprefix("#/").partition("/")[0]
            if reference.startswith("#") and place not in shared:
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def _parts(schema: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The schemas directly within `schema`, each with its path. Shared definitions come first."""
    for keyword in _BY_NAME:
        held = schema.get(keyword)
        for name, child in held.items() if isinstance(held, dict) else ():
            if isinstance(child, dict):
                yield [keyword, str(name)], child
    for keyword in _ONE:
        if isinstance(child := schema.get(keyword), dict):
            yield [keyword], child
    for keyword in _SEVERAL:
        listed = schema.get(keyword)
        for at, child in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(child, dict):
                yield [keyword, str(at)], child


def _patterns(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield "pattern", pattern
    held = schema.get("patternProperties")
    for pattern in held if isinstance(held, dict) else ():
        yield "patternProperties", str(pattern)
