"""Python's operations on texts, dicts and messages, over values that the server has.

Each function returns the result that Python would give, or raises CannotCompile.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_weftline.lower.symbols import (
    CannotCompile,
    Fragment,
    HoleMessage,
    Ref,
    is_symbolic,
    settled,
    shown,
    string_pieces,
)
from weftline.contract.transforms import parse
from weftline.contract.transforms.methods import FACTS, LISTS, METHODS
from weftline.errors import InvalidRequest

MESSAGES = (HumanMessage, AIMessage, SystemMessage)


def is_exact(value: Any) -> bool:
    """Whether `value` has only Python's own classes, so that comparing it runs no user code."""
    if type(value) in (str, int, float, bool, type(None)):
        return True
    if type(value) in (list, tuple):
        return all(map(is_exact, value))
    return type(value) is dict and all(map(is_exact, [*value, *value.values()]))


def method(owner: Any, name: str, args: Sequence[Any], step: object) -> Any:
    """`owner.name(*args)`."""
    if isinstance(owner, Ref) and owner.kind is None and not is_symbolic(list(args)):
        return _in_server(owner, name, args, step)
    if type(owner) is dict and name == "get" and is_exact(list(args)):
        return owner.get(*args)
    if type(owner) is not str or name not in METHODS:
        raise CannotCompile(step, f"it calls {name!r}, which may do anything")
    if not is_exact(list(args)):
        raise CannotCompile(step, f"{name!r} looks at a value of the server")
    return getattr(owner, name)(*args)


def _in_server(owner: Ref, name: str, args: Sequence[Any], step: object) -> Any:
    if name == "get" and not owner.is_text and 0 < len(args) <= 2:
        spec: dict[str, Any] = {"op": "get", "key": args[0]}
        if args[1:]:
            spec["default"] = args[1]
    elif name == "strip" and not args and owner.is_text:
        spec = {"op": "strip"}
    elif name in METHODS:
        spec = {"op": "text", "method": name, "args": list(args)}
    else:
        raise CannotCompile(step, f"it calls {name!r}, which may do anything")
    try:
        parse(spec)
    except InvalidRequest as error:
        raise CannotCompile(step, error.message) from error
    return owner.then(spec, is_text=name != "get" and name not in LISTS | FACTS)


def length(value: Any, step: object) -> Any:
    """`len(value)` for a value of the server."""
    if not isinstance(value, Ref) or value.kind is not None:
        raise CannotCompile(step, "the length of a value of the server is not known here")
    return value.then({"op": "len"})


def can_be_sent(text: str) -> bool:
    """Whether JSON can carry a text. JSON cannot carry half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def formatted(template: str, args: Sequence[Any], named: Mapping[str, Any], step: object) -> Any:
    """`template.format(*args, **named)`, for fields without a format, conversion or path."""
    pieces: list[Fragment] = []
    number = 0
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise CannotCompile(step, "its format string cannot be read") from error
    for text, field, spec, conversion in fields:
        pieces.append(text)
        if field is None:
            continue
        if spec or conversion:
            raise CannotCompile(step, "a field of its format string has a format")
        if field == "":
            key: Any = number
            number += 1
        else:
            key = int(field) if field.isdecimal() else field
        values: Any = args if isinstance(key, int) else named
        if (isinstance(key, int) and key >= len(args)) or (
            isinstance(key, str) and key not in named
        ):
            raise CannotCompile(step, f"its format string has no plain field {field!r}")
        pieces += shown(values[key], step)
    return settled(pieces)


def percent(template: Any, right: Any, step: object) -> Any:
    """`template % right`, for `%s` and `%%`."""
    if type(template) is not str:
        raise CannotCompile(step, "its % does not begin with a constant text")
    values = list(right) if type(right) is tuple else [right]
    if type(right) is dict:
        raise CannotCompile(step, "its % takes a dict")
    parts = template.split("%%")
    holes = sum(part.count("%s") for part in parts)
    if holes != len(values) or holes != sum(part.count("%") for part in parts):
        raise CannotCompile(step, "its % has a format other than %s")
    pieces: list[Fragment] = []
    waiting = iter(values)
    for index, part in enumerate(parts):
        pieces += ["%"] * (index > 0)
        first, *rest = part.split("%s")
        pieces.append(first)
        for text in rest:
            pieces += [*shown(next(waiting), step), text]
    return settled(pieces)


def said(cls: type[Any], args: Sequence[Any], named: Mapping[str, Any], step: object) -> Any:
    """A message of LangChain with a text of the server."""
    values = dict(named)
    if args:
        values["content"] = args[0]
    if len(args) > 1 or set(values) != {"content"}:
        raise CannotCompile(step, f"its {cls.__name__} has arguments besides its content")
    content = values["content"]
    if not is_symbolic(content):
        return cls(content)
    return HoleMessage(cls, string_pieces(content, step))


COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "Eq": lambda a, b: a == b,
        "NotEq": lambda a, b: a != b,
        "Lt": lambda a, b: a < b,
        "LtE": lambda a, b: a <= b,
        "Gt": lambda a, b: a > b,
        "GtE": lambda a, b: a >= b,
        "Is": lambda a, b: a is b,
        "IsNot": lambda a, b: a is not b,
        "In": lambda a, b: a in b,
        "NotIn": lambda a, b: a not in b,
    }
)
