"""Constraints: the form that an output must have, checked for its kind, size and depth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from weftline.contract.errors import InvalidRequest

# A pattern of this length stops all outputs for 0.34 s at its first token. A schema of the other
# length stops them for 0.1 s, and a thread compiles it in 1.9 s.
MAX_CONSTRAINT_CHARS = 64 * 1024
MAX_SCHEMA_CHARS = 512 * 1024
MAX_CONSTRAINT_DEPTH = 64

_FORM = (
    'a constraint is one of {"json_schema": ...}, {"regex": "..."}, {"choice": ["...", ...]}, '
    '{"grammar": "..."} and {"structural_tag": {...}}'
)


def check_constraint(constraint: Mapping[str, Any], param: str = "constraint") -> None:
    """Raise InvalidRequest, which names `param`, unless `constraint` is one of the five kinds.

    A grammar is EBNF or Lark. The engine reads the grammar, and refuses a wrong one.
    """
    match constraint:
        case {"json_schema": dict() | bool() as schema, **rest} if not rest:
            check_schema(schema, param)
            check_references(schema, param)
            _check_chars(schema, MAX_SCHEMA_CHARS, param)
        case {"regex": str(text), **rest} | {"grammar": str(text), **rest} if not rest and text:
            if len(text) > MAX_CONSTRAINT_CHARS:
                [kind] = constraint
                raise InvalidRequest(
                    f"the constraint's {kind} is longer than {MAX_CONSTRAINT_CHARS} characters",
                    param=param,
                )
        case {"choice": [_, *_] as texts, **rest} if not rest:
            if not all(isinstance(text, str) and text for text in texts):
                raise InvalidRequest("every choice must be a non-empty text", param=param)
        case {"structural_tag": dict() as tag, **rest} if not rest:
            format = tag_format(tag, param)
            check_schema(format, param)
            _check_chars(format, MAX_CONSTRAINT_CHARS, param)
        case _:
            raise InvalidRequest(_FORM, param=param)


def check_schema(schema: Any, param: str) -> None:
    """Raise InvalidRequest for a JSON schema that is too deep to be read."""
    waiting = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_CONSTRAINT_DEPTH:
            raise InvalidRequest(
                f"{param} nests deeper than {MAX_CONSTRAINT_DEPTH} levels", param=param
            )
        children = value.values() if isinstance(value, dict) else value
        if isinstance(value, (dict, list)):
            waiting.extend((child, depth + 1) for child in children)


def _check_chars(schema: Any, most: int, param: str) -> None:
    if len(json.dumps(schema)) > most:
        raise InvalidRequest(f"{param} is longer than {most} characters", param=param)


def check_references(schema: Any, param: str) -> None:
    """Raise InvalidRequest for a `$ref` within the schema that names nothing in it.

    An engine judges references to other documents, and those of a schema that has several bases.
    """
    found = list(_keywords(schema))
    if any(keyword == "$id" for keyword, _ in found):
        return
    anchors = {f"#{name}" for keyword, name in found if keyword == "$anchor"}
    for keyword, reference in found:
        if keyword != "$ref" or not reference.startswith("#") or reference in anchors:
            continue
        if not _names_something(reference.removeprefix("#"), schema):
            raise InvalidRequest(
                f"{param}: the $ref {reference[:200]!r} names nothing in the schema: define it, or "
                "correct the name",
                param=param,
            )


# What these keywords hold is data, in which "$ref" is a name like any other.
_DATA = ("const", "enum", "default", "examples")


def _keywords(schema: Any) -> Iterator[tuple[str, str]]:
    """Each keyword of the schema about references, and its text."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for keyword in ("$ref", "$id", "$anchor"):
                if isinstance(text := value.get(keyword), str):
                    yield keyword, text
            waiting += [child for name, child in value.items() if name not in _DATA]


def _names_something(pointer: str, schema: Any) -> bool:
    """Whether a JSON pointer, as a reference writes it, is the place of something."""
    head, *names = unquote(pointer).split("/")
    if head:
        return False
    place = schema
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return False
    return True


def tag_format(tag: Mapping[str, Any], param: str = "constraint") -> dict[str, Any]:
    """The `format` of a structural tag, in the words of xgrammar (https://xgrammar.mlc.ai/docs/).

    The older form has `structures` of begin, schema and end, and `triggers`. It becomes a format of
    the type triggered_tags. Raises InvalidRequest for a tag of another form.
    """
    match tag:
        case {"format": dict() as format, **rest} if rest.keys() <= {"type"}:
            return format
        case {"structures": [_, *_] as structures, "triggers": [_, *_] as triggers, **rest}:
            if rest.keys() <= {"type", "at_least_one"}:
                return {
                    "type": "triggered_tags",
                    "triggers": triggers,
                    "tags": [_tag(one, at, param) for at, one in enumerate(structures)],
                    "at_least_one": rest.get("at_least_one", False),
                    "stop_after_first": False,
                }
    raise InvalidRequest(
        'a structural_tag is {"format": {...}}, or {"structures": [{"begin": "...", "schema": '
        '{...}, "end": "..."}, ...], "triggers": ["...", ...]}',
        param=param,
    )


def _tag(structure: Any, at: int, param: str) -> dict[str, Any]:
    match structure:
        case {"begin": str(begin), "end": str(end), **rest} if rest.keys() <= {"schema"}:
            schema = rest.get("schema")
            content = {"type": "json_schema", "json_schema": True if schema is None else schema}
            return {"type": "tag", "begin": begin, "content": content, "end": end}
    raise InvalidRequest(
        f"structure {at} of the structural_tag needs begin, schema and end", param=param
    )
