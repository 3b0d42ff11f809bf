"""Conditions on texts of the server, as predicates (weftline.predicates).

It reads the syntax tree of a condition, and never calls the user's code. It knows comparisons,
`in`, `and`, `or`, `not`, `.startswith()` and `.endswith()`, on texts after methods such as
`.strip()`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from langchain_weftline.lower.pure import Evaluation, evaluation_of
from langchain_weftline.lower.symbols import Answer, CannotCompile, Ref, is_symbolic
from langchain_weftline.lower.texts import COMPARISONS, is_exact
from weftline import predicates
from weftline.errors import InvalidRequest

Predicate = dict[str, Any]
_FLIPPED = MappingProxyType({"Lt": ">", "LtE": ">=", "Gt": "<", "GtE": "<="})
_RELATIONS = MappingProxyType({"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="})
_ENDS = MappingProxyType({"startswith": "starts", "endswith": "ends"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate that the text of the variable `var` must meet."""

    var: str
    when: Predicate


Truth = bool | Condition


def condition_of(function: Callable[..., Any], value: Any) -> Truth:
    """Whether `function(value)` is true: known now, or a condition that the server checks.

    Raises CannotCompile if it is neither.
    """
    node, evaluation = evaluation_of(function, value)
    return checked(evaluation.run(node, lambda expression: _truth(evaluation, expression)))


def checked(truth: Truth) -> Truth:
    """`truth`. Raises CannotCompile if the server would refuse its predicate."""
    if isinstance(truth, Condition):
        try:
            predicates.check(truth.when)
        except InvalidRequest as error:
            raise CannotCompile("condition", error.message) from error
    return truth


def truth_of(value: Any, step: object) -> Truth:
    """Whether a value is true."""
    if isinstance(value, Ref) and value.is_text and value.make is None:
        return _asked(value, {"op": "truthy"})
    if isinstance(value, Answer):
        return True  # a message
    if is_symbolic(value) or not is_exact(value):
        raise CannotCompile(step, "its condition is not about a text")
    return bool(value)


def negated(truth: Condition) -> Condition:
    """The condition that holds where `truth` does not."""
    return Condition(truth.var, {"op": "not", "of": truth.when})


def _truth(on: Evaluation, node: ast.expr) -> Truth:
    match node:
        case ast.BoolOp(op=op, values=parts):
            return _joined(on, parts, is_or=isinstance(op, ast.Or))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(on, operand)
            return negated(truth) if isinstance(truth, Condition) else not truth
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(on, left, type(op).__name__, right)
        case ast.Call(
            func=ast.Attribute(value=of, attr="startswith" | "endswith" as name),
            args=[given],
            keywords=[],
        ):
            owner = on.value(of)
            if _is_text(owner):
                return _begun(on, owner, _ENDS[name], on.concrete(given))
    return truth_of(on.value(node), on.step)


def _joined(on: Evaluation, parts: Sequence[ast.expr], *, is_or: bool) -> Truth:
    """`a and b`, or `a or b`. What is known now ends it, or is left out."""
    found: list[Condition] = []
    for part in parts:
        truth = _truth(on, part)
        if isinstance(truth, Condition):
            found.append(truth)
        elif truth is is_or and not found:
            return truth
        elif truth is is_or:
            raise CannotCompile(
                on.step, "it asks about a text before it asks about a value of the client"
            )
    if not found:
        return not is_or
    [var, *others] = {one.var for one in found}
    if others:
        raise CannotCompile(on.step, "its condition is about several values of the server")
    whens = [one.when for one in found]
    return Condition(var, whens[0] if len(whens) == 1 else _op("any" if is_or else "all", whens))


def _op(name: str, parts: list[Predicate]) -> Predicate:
    return {"op": name, "of": parts}


def _compared(on: Evaluation, left: ast.expr, name: str, right: ast.expr) -> Truth:
    one: Any = on.value(left)
    if isinstance(right, ast.Set):
        other: Any = [on.value(item) for item in right.elts]
    else:
        other = on.value(right)
    if not is_symbolic(one) and not is_symbolic(other):
        if not (is_exact(one) and is_exact(other)):
            raise CannotCompile(on.step, "a condition looks at an object")
        return COMPARISONS[name](one, other)
    if is_symbolic(one) and is_symbolic(other):
        raise CannotCompile(on.step, "it compares two values of the server")
    text, given = (one, other) if is_symbolic(one) else (other, one)
    if not _is_text(text) or not is_exact(given):
        raise CannotCompile(on.step, "its condition is not about a text")
    is_not = name in ("NotEq", "NotIn", "IsNot")
    truth = _about(on, text, name, given, is_left=text is one)
    if isinstance(truth, Condition):
        return negated(truth) if is_not else truth
    return truth is not is_not


def _about(on: Evaluation, text: Ref, name: str, given: Any, *, is_left: bool) -> Truth:
    """A comparison of a text of the server with a value of the client, without its negation."""
    match name:
        case "Eq" | "NotEq":
            return _asked(text, {"op": "equals", "value": given}) if _is_str(given) else False
        case "Is" | "IsNot" if given is None:
            return False
        case "In" | "NotIn" if is_left and type(given) in (list, tuple):
            texts = [one for one in given if _is_str(one)]
            return _asked(text, {"op": "in", "value": texts}) if texts else False
        case "In" | "NotIn" if not is_left and _is_str(given):
            return _asked(text, {"op": "contains", "value": given})
        case "Lt" | "LtE" | "Gt" | "GtE" if _is_str(given):
            relation = (_RELATIONS if is_left else _FLIPPED)[name]
            return _asked(text, {"op": "compare", "is": relation, "value": given})
    raise CannotCompile(on.step, "no predicate of the server does this comparison")


def _begun(on: Evaluation, text: Ref, op: str, given: Any) -> Truth:
    """`text.startswith(given)`, or `endswith`; with a tuple, one of its texts is enough."""
    texts = list(given) if type(given) is tuple else [given]
    if not texts or not all(map(_is_str, texts)):
        raise CannotCompile(on.step, "no predicate of the server does this comparison")
    parts = [{"op": op, "value": one} for one in texts]
    return _asked(text, parts[0] if len(parts) == 1 else _op("any", parts))


def _asked(text: Ref, predicate: Mapping[str, Any]) -> Condition:
    specs = {"transforms": list(text.transforms)} if text.transforms else {}
    return Condition(text.var, {**predicate, **specs})


def _is_text(value: Any) -> bool:
    return isinstance(value, Ref) and value.is_text and value.make is None


def _is_str(value: Any) -> bool:
    """Whether it is a text that JSON can carry."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CannotCompile("condition", "it has half of a surrogate pair") from error
    return True
