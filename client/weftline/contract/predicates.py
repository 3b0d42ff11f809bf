"""Predicates: conditions as data, which the server evaluates for branches and loops.

A predicate is a JSON object such as `{"op": "contains", "value": "number"}`. `check` validates one,
and `holds` evaluates it for a value. A value of the wrong type is an error, not False.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from weftline.contract import transforms
from weftline.contract.errors import InvalidRequest, TransformFailed
from weftline.contract.transforms.patterns import MAX_READ_CHARS, search_for

Predicate = Mapping[str, Any]

MAX_DEPTH = 8
MAX_PARTS = 64  # predicates in one predicate, itself included
MAX_VALUES = 1024
MAX_CHARS = 4096

_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
# Python's own comparisons, of values of any JSON type. With "r" the given value is the left one.
_PYTHON: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        **_RELATIONS,
        "r<": lambda value, given: given < value,
        "r<=": lambda value, given: given <= value,
        "r>": lambda value, given: given > value,
        "r>=": lambda value, given: given >= value,
        "==": operator.eq,
        "in": lambda value, given: value in given,
        "contains": lambda value, given: given in value,
    }
)


def check(spec: object) -> None:
    """Raise InvalidRequest unless `spec` is a predicate that can be evaluated.

    The check compiles the predicate's patterns, which may take a second for each.
    """
    read(spec)
    for part in _parts(spec, MAX_DEPTH):
        prepare(part)


def read(spec: object) -> None:
    """Raise InvalidRequest unless `spec` is a predicate within the bounds; compile nothing."""
    if sum(1 for _ in _parts(spec, MAX_DEPTH)) > MAX_PARTS:
        _refuse(f"a predicate has at most {MAX_PARTS} parts")


def prepare(part: Predicate) -> None:
    """Compile the patterns of a predicate, without those of the predicates inside it.

    Raises InvalidRequest for one that cannot be compiled.
    """
    for one in part.get("transforms", ()):
        transforms.parse(one)
    if part["op"] == "matches":
        search_for(part["value"])


def parts(spec: Predicate) -> Iterator[Predicate]:
    """The predicate, and all predicates inside it."""
    return _parts(spec, MAX_DEPTH)


def first(specs: Sequence[Predicate], value: Any) -> int | None:
    """The number of the first predicate that holds for `value`; None if none does.

    Raises TransformFailed as `holds` does.
    """
    return next((number for number, spec in enumerate(specs) if holds(spec, value)), None)


def holds(spec: Predicate, value: Any) -> bool:
    """Whether the predicate holds for `value`. Raises TransformFailed if their types do not fit."""
    value = transforms.run(spec.get("transforms", ()), value)
    match spec["op"]:
        case "not":
            return not holds(spec["of"], value)
        case "all":
            return all(holds(part, value) for part in spec["of"])
        case "any":
            return any(holds(part, value) for part in spec["of"])
        case "compare":
            return _compare(spec["is"], value, spec["value"])
        case "python":
            return _in_python(spec["is"], value, spec["value"])
        case "matches":
            return search_for(spec["value"]).first(_readable(value)) is not None
    found: bool = _SIMPLE[spec["op"]](value, spec.get("value"))
    return found


def _equals(value: Any, given: Any) -> bool:
    if _kind(value) != _kind(given):
        _misfit("equals", value, _kind(given))
    return bool(value == given)


def _in(value: Any, given: list[Any]) -> bool:
    comparable = [one for one in given if _kind(one) == _kind(value)]
    if not comparable:
        _misfit("in", value, " or ".join(sorted({_kind(one) for one in given})))
    return value in comparable


def _contains(value: Any, given: Any) -> bool:
    if isinstance(value, list):
        return any(_kind(one) == _kind(given) and one == given for one in value)
    if not isinstance(given, str):
        _misfit("contains", value, "list")
    return given in _text("contains", value)


def _starts(value: Any, given: str) -> bool:
    return _text("starts", value).startswith(given)


def _ends(value: Any, given: str) -> bool:
    return _text("ends", value).endswith(given)


def _empty(value: Any, given: None) -> bool:
    if not isinstance(value, (str, list, dict)):
        _misfit("empty", value, "text, list or object")
    return not value


def _truthy(value: Any, given: None) -> bool:
    return bool(value)


_SIMPLE: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "equals": _equals,
        "in": _in,
        "contains": _contains,
        "starts": _starts,
        "ends": _ends,
        "empty": _empty,
        "truthy": _truthy,
    }
)
OPS = (*_SIMPLE, "matches", "compare", "python", "not", "all", "any")


def _compare(relation: str, value: Any, given: Any) -> bool:
    if _kind(value) != _kind(given):
        _misfit("compare", value, _kind(given))
    return _RELATIONS[relation](value, given)


def _in_python(relation: str, value: Any, given: Any) -> bool:
    """What Python says. Raises TransformFailed with Python's own message where it raises."""
    try:
        return bool(_PYTHON[relation](value, given))
    except TypeError as error:
        raise TransformFailed(f"TypeError: {error}") from error


def _parts(spec: object, depth: int) -> Iterator[Predicate]:
    """The predicate and those inside it, each checked. Raises InvalidRequest."""
    if depth == 0:
        _refuse(f"predicates nest at most {MAX_DEPTH} deep")
    if not isinstance(spec, Mapping) or spec.get("op") not in OPS:
        _refuse(f"a predicate is an object with an 'op', one of {', '.join(OPS)}")
    _check_fields(spec)
    yield spec
    if spec["op"] == "not":
        yield from _parts(spec["of"], depth - 1)
    elif spec["op"] in ("all", "any"):
        if not isinstance(spec["of"], (list, tuple)) or not spec["of"]:
            _refuse(f"{spec['op']} takes 'of', a list of predicates")
        for part in spec["of"]:
            yield from _parts(part, depth - 1)


_FIELDS: Mapping[str, set[str]] = MappingProxyType(
    {
        "compare": {"is", "value"},
        "python": {"is", "value"},
        "not": {"of"},
        "all": {"of"},
        "any": {"of"},
        "empty": set(),
        "truthy": set(),
    }
)


def _check_fields(spec: Predicate) -> None:
    op = spec["op"]
    own = _FIELDS.get(op, {"value"})
    if spec.keys() - {"op", "transforms"} != own:
        takes = " and ".join(repr(name) for name in sorted(own)) or "no value"
        _refuse(f"predicate {op!r} takes {takes}")
    specs = spec.get("transforms", ())
    if not isinstance(specs, (list, tuple)) or len(specs) > transforms.MAX_SPECS:
        _refuse("a predicate's transforms are a list")
    for one in specs:
        transforms.read(one)
    _check_value(op, spec)


def _check_value(op: str, spec: Predicate) -> None:
    value = spec.get("value")
    if op in ("starts", "ends", "matches") and not isinstance(value, str):
        _refuse(f"predicate {op!r} takes a 'value' that is text")
    if isinstance(value, str) and len(value) > MAX_CHARS:
        _refuse(f"a predicate's value has at most {MAX_CHARS:,} characters")
    if op == "in" and not (isinstance(value, list) and 0 < len(value) <= MAX_VALUES):
        _refuse(f"predicate 'in' takes a 'value' that is a list of 1 to {MAX_VALUES:,} values")
    if op == "python":
        _check_python(spec["is"], value)
    if op == "compare":
        relation = spec["is"]
        if not isinstance(relation, str) or relation not in _RELATIONS:
            _refuse(f"compare takes 'is', one of {' '.join(_RELATIONS)}")
        if _kind(value) not in ("number", "text"):
            _refuse("compare takes a 'value' that is a number or text")


def _check_python(relation: object, value: Any) -> None:
    if not isinstance(relation, str) or relation not in _PYTHON:
        _refuse(f"python takes 'is', one of {' '.join(_PYTHON)}")
    if relation == "in" and not isinstance(value, (list, str)):
        _refuse("python's 'in' takes a 'value' that is a list or text")
    items = value if isinstance(value, list) else [value]
    if len(items) > MAX_VALUES or any(isinstance(one, (list, dict)) for one in items):
        _refuse(f"python takes a 'value' that is plain, or a list of {MAX_VALUES:,} plain values")


def _kind(value: Any) -> str:
    """The JSON type of a value. A boolean does not count as a number."""
    for name, types in _KINDS:
        if isinstance(value, types):
            return name
    return "null"


_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("boolean", (bool,)),
    ("number", (int, float)),
    ("text", (str,)),
    ("list", (list,)),
    ("object", (dict,)),
)


def _text(op: str, value: Any) -> str:
    if not isinstance(value, str):
        _misfit(op, value, "text")
    return value


def _readable(value: Any) -> str:
    text = _text("matches", value)
    if len(text) > MAX_READ_CHARS:
        raise TransformFailed(
            f"matches reads at most {MAX_READ_CHARS} characters, and there are {len(text)}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TransformFailed("matches reads text, and a lone surrogate is none") from error
    return text


def _misfit(op: str, value: Any, wanted: str) -> NoReturn:
    raise TransformFailed(f"predicate {op!r} asks about {wanted}, and the value is {_kind(value)}")


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest(message, param="when")
