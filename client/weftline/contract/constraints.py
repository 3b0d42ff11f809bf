"""Constraints: the form that an output must have, checked for its kind, size and depth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weftline.contract.errors import InvalidRequest

MAX_CONSTRAINT_CHARS = 64 * 1024
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
            check_schema(tag_format(tag, param), param)
        case _:
            raise InvalidRequest(_FORM, param=param)


def check_schema(schema: Any, param: str) -> None:
    """Raise InvalidRequest for a JSON schema that is too long or too deep to be compiled."""
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
    if len(json.dumps(schema)) > MAX_CONSTRAINT_CHARS:
        raise InvalidRequest(
            f"{param} is longer than {MAX_CONSTRAINT_CHARS} characters", param=param
        )


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
