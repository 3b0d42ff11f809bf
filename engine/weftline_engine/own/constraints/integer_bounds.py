"""Bounds for the integers of a JSON schema that has none, so that no number grows without end."""

from __future__ import annotations

import json
from typing import Any

# The largest number of 64 bits that a double holds, too: llguidance reads bounds as doubles.
_MOST = (1 << 63) - 1024
_BOUNDS = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32)}
_BOUNDS |= {f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32)} | {"uint64": (0, _MOST)}

# Keywords that hold a schema, several, or several by name. What `not` and `if` hold is no value of
# the answer.
_ONE = ("items", "additionalProperties", "contains", "then", "else", "unevaluatedProperties")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


# What does not change which values an integer may have.
_NOTES = {"title", "description", "default", "examples", "format", "deprecated"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"}
_NAME = "weftline.integer"


def with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, whose integers are those of their `format`, or of 64 bits, unless it says less.

    Without bounds a model may go on writing digits until its output is full.
    """
    bounds = _Bounds(shares='"$id"' not in json.dumps(schema))
    made: dict[str, Any] = bounds.schema(schema)
    if not bounds.definitions:
        return made
    own = made.get("$defs")
    return {**made, "$defs": {**(own if isinstance(own, dict) else {}), **bounds.definitions}}


class _Bounds:
    """Bounds integers. Equal ones share a definition, if references may be added: 800 bounds of
    their own made llguidance's lexer too big, and 5,000 references take it 1.2 s."""

    def __init__(self, *, shares: bool) -> None:
        self.definitions: dict[str, Any] = {}
        self._names: dict[str, str] = {}  # by the text of the definition
        self._shares = shares

    def schema(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        made = dict(schema)
        for name, value in schema.items():
            if name in _SEVERAL and isinstance(value, list):
                made[name] = [self.schema(one) for one in value]
            elif name in _ONE:
                made[name] = self.schema(value)
            elif name in _NAMED and isinstance(value, dict):
                made[name] = {key: self.schema(one) for key, one in value.items()}
        return self._bounded(made) if _is_integer(schema) else made

    def _bounded(self, schema: dict[str, Any]) -> dict[str, Any]:
        """An integer, or what may be one and something else."""
        kinds = schema["type"]
        if isinstance(kinds, list) and len(kinds) > 1:
            others = [one for one in kinds if one != "integer"]
            numbers = {name: value for name, value in schema.items() if name in _OF_NUMBERS}
            integer = self._bounded({**numbers, "type": "integer"})
            return {"anyOf": [integer, {**schema, "type": others}]}
        low, high = _BOUNDS.get(str(schema.get("format")), (-_MOST, _MOST))
        least = _first(schema, "minimum", "exclusiveMinimum")
        most = _first(schema, "maximum", "exclusiveMaximum")
        made = dict(schema)
        if least is None and (most is None or most > low):
            made["minimum"] = low
        if most is None and (least is None or least < high):
            made["maximum"] = high
        return self._shared(made) if made != schema and self._shares else made

    def _shared(self, schema: dict[str, Any]) -> dict[str, Any]:
        bare = {name: value for name, value in schema.items() if name not in _NOTES}
        text = json.dumps(bare, sort_keys=True)
        if text not in self._names:
            self._names[text] = f"{_NAME}.{len(self._names)}"
            self.definitions[self._names[text]] = bare
        return {"$ref": f"#/$defs/{self._names[text]}"}


def _is_integer(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    named = schema.keys() & {"enum", "const", "$ref", "allOf", "anyOf", "oneOf"}
    return "integer" in listed and "number" not in listed and not named


def _first(schema: dict[str, Any], *names: str) -> float | None:
    """The first of these numbers. A boolean, as older drafts have it, says nothing by itself."""
    found = (schema.get(name) for name in names)
    return next((one for one in found if isinstance(one, int | float) and one is not True), None)
