"""Reads and writes calls in Python's notation, as data: a text is parsed, and never evaluated."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Calls = Sequence[tuple[str, Mapping[str, Any]]]  # names and arguments

# The rest of a quoted text. LFM2's template does not escape quotes, so a text ends at the first one
# that is followed by what can follow a text.
_REST = {
    quote: re.compile(rf"((?:\\.|[^{quote}\\]|{quote}(?!\s*[,)\]}}:]))*+){quote}", re.DOTALL)
    for quote in "'\""
}
_QUOTE = re.compile("['\"]")
_WITHIN = re.compile(r"\\.|['\"\n\r]", re.DOTALL)
_ESCAPES = frozenset("\\'\"abfnrtvxuU01234567")
_JSON_NAMES = {"true": True, "false": False, "null": None}
_NAME = re.compile(r"[\w.-]{1,128}")


def calls_in_python(text: str) -> Calls:
    """A list of calls with named arguments, all of them literals: [f(city='Rome'), g(days=2)].

    Raises ValueError if it is something else.
    """
    try:
        [line] = ast.parse(_escaped(text.strip())).body
    except (SyntaxError, RecursionError, MemoryError) as reason:
        raise ValueError(f"this is no Python: {reason}") from None
    match line:
        case ast.Expr(ast.List(calls)):
            return [_call_of(one) for one in calls]
    raise ValueError("this is no list")


def written_in_python(calls: Calls) -> str:
    """Write a list of calls: [f(city="Rome"), g(days=2)]."""
    made = [
        f"{name}({', '.join(f'{key}={_written(value)}' for key, value in some.items())})"
        for name, some in calls
    ]
    return f"[{', '.join(made)}]"


def _written(value: Any) -> str:
    # JSON's quotes, as LFM2's publisher writes texts.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _escaped(text: str) -> str:
    """The text with the quotes and line breaks within quoted texts escaped."""
    made, at = [], 0
    while found := _QUOTE.search(text, at):
        rest = _REST[found.group()].match(text, found.end())
        if rest is None:
            raise ValueError("a quoted text does not end")
        made += [text[at : found.end()], _WITHIN.sub(_escape, rest.group(1)), found.group()]
        at = rest.end()
    return "".join([*made, text[at:]])


def _escape(found: re.Match[str]) -> str:
    text = found.group()
    if text[0] == "\\":
        return text if text[1] in _ESCAPES else "\\" + text
    return {"\n": "\\n", "\r": "\\r"}.get(text, "\\" + text)


def _call_of(node: ast.expr) -> tuple[str, Mapping[str, Any]]:
    before = ""
    match node:
        case ast.BinOp(left, ast.Sub(), right):  # a name with a hyphen
            before, node = f"{ast.unparse(left)}-", right
    match node:
        case ast.Call(func, [], keywords):
            name = before + ast.unparse(func)
            arguments = {one.arg: _literal(one.value) for one in keywords if one.arg is not None}
            if len(arguments) == len(keywords) and _NAME.fullmatch(name := name.replace(" ", "")):
                return name, arguments
    raise ValueError("an entry is no call with named arguments")


def _literal(node: ast.expr) -> Any:
    """A value of JSON, by Python's names or by JSON's."""
    match node:
        case ast.Constant(str() | int() | float() | None as value):
            return value
        case ast.Name(name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.List(values) | ast.Tuple(values):
            return [_literal(one) for one in values]
        case ast.Dict(keys, values):
            return {_key(key): _literal(one) for key, one in zip(keys, values, strict=True)}
    raise ValueError("an argument is no literal")


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(str(key)):
            return key
    raise ValueError("a key is no text")
