"""Conditions on values of the server, as predicates (weftline.predicates).

This module reads the syntax tree of a condition, and never calls the user's code. The module knows
comparisons, `in`, `and`, `or`, `not`, `len()` and methods such as `.strip()` and `.startswith()`,
on texts and on parts of parsed values. Each predicate means what Python means, for values of any
JSON type.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from langchain_weftline.lower.pure import Evaluation, evaluation_of
from langchain_weftline.lower.symbols import (
    AnswerMessage,
    CannotCompile,
    HoleMessage,
    HoleText,
    Ref,
    Spec,
    is_symbolic,
)
from langchain_weftline.lower.texts import COMPARISONS, can_be_sent, is_exact
from weftline import predicates
from weftline.errors import InvalidRequest

Predicate = dict[str, Any]
_LEFT = MappingProxyType(
    {"Eq": "==", "NotEq": "==", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "In": "in"}
    | {"NotIn": "in", "Is": "==", "IsNot": "=="}
)
_RIGHT = MappingProxyType(
    {"Eq": "==", "NotEq": "==", "Lt": "r<", "LtE": "r<=", "Gt": "r>", "GtE": "r>="}
    | {"In": "contains", "NotIn": "contains", "Is": "==", "IsNot": "=="}
)
_NEGATED = ("NotEq", "NotIn", "IsNot")
_ENDS = MappingProxyType({"startswith": "starts", "endswith": "ends"})
_MAX_INT = 2**53  # every JSON reader keeps whole numbers up to this


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate on variables. Each innermost part of the predicate has the name of its variable,
    `var`."""

    when: Predicate

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it looks at, each once."""
        return tuple(dict.fromkeys(leaf["var"] for leaf in _leaves(self.when)))

    def placed(self, before: Mapping[str, Sequence[Spec]]) -> Predicate:
        """The predicate on one value, of which `before` finds the value of each variable."""
        return _placed(self.when, before)


Truth = bool | Condition


def condition_of(function: Callable[..., Any], value: Any) -> Truth:
    """Whether `function(value)` is true: known now, or a condition that the server checks.

    Raises CannotCompile if it is neither.
    """
    node, evaluation = evaluation_of(function, value)
    return checked(evaluation.run(node, lambda expression: truth_in(evaluation, expression)))


def checked(truth: Truth) -> Truth:
    """`truth`. Raises CannotCompile if the server would refuse its predicate."""
    if isinstance(truth, Condition):
        try:
            predicates.check(truth.placed(dict.fromkeys(truth.variables, ())))
        except InvalidRequest as error:
            raise CannotCompile("condition", error.message) from error
    return truth


def truth_of(value: Any, step: object) -> Truth:
    if isinstance(value, Ref) and value.kind is None:
        return _asked(value, {"op": "truthy"})
    if isinstance(value, (AnswerMessage, HoleMessage)):
        return True  # a message
    if isinstance(value, HoleText) and any(isinstance(part, str) and part for part in value.pieces):
        return True
    if is_symbolic(value) or not is_exact(value):
        raise CannotCompile(step, "its condition is not about a text or a parsed value")
    return bool(value)


def negated(truth: Truth) -> Truth:
    """The condition that holds where `truth` does not."""
    if isinstance(truth, Condition):
        return Condition({"op": "not", "of": truth.when})
    return not truth


def both(conditions: Sequence[Condition]) -> Condition:
    """The condition that holds where all of `conditions` hold, which are checked in order."""
    whens = [one.when for one in conditions]
    return conditions[0] if len(whens) == 1 else Condition({"op": "all", "of": whens})


def truth_in(on: Evaluation, node: ast.expr) -> Truth:
    """Whether an expression is true. Raises CannotCompile where no predicate says so."""
    match node:
        case ast.BoolOp(op=op, values=parts):
            truths = (truth_in(on, part) for part in parts)
            return _joined(truths, is_or=isinstance(op, ast.Or))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return negated(truth_in(on, operand))
        case ast.Compare(left=first, ops=ops, comparators=others):
            sides = pairwise([first, *others])
            pairs = zip(sides, ops, strict=True)
            truths = (_compared(on, one, type(op).__name__, two) for (one, two), op in pairs)
            return _joined(truths, is_or=False)
        case ast.Call(
            func=ast.Attribute(value=of, attr="startswith" | "endswith" as name),
            args=[given],
            keywords=[],
        ):
            owner = on.value(of)
            if isinstance(owner, Ref) and owner.is_text and owner.kind is None:
                return _begun(on, owner, _ENDS[name], on.concrete(given))
    return truth_of(on.value(node), on.step)


def _joined(truths: Iterator[Truth], *, is_or: bool) -> Truth:
    """`a and b`, or `a or b`. An operand that is known now decides the result, or is left out."""
    found: list[Predicate] = []
    for truth in truths:
        if isinstance(truth, Condition):
            found.append(truth.when)
        elif truth is is_or:
            if not found:
                return truth
            found.append(_constant(found[0], truth))  # those before it may fail
            break
    if not found:
        return not is_or
    return Condition(found[0] if len(found) == 1 else _op("any" if is_or else "all", found))


def _constant(beside: Predicate, truth: bool) -> Predicate:
    """A predicate that always or never holds, on a variable of `beside`."""
    never = {"op": "python", "is": "in", "value": [], "var": next(_leaves(beside))["var"]}
    return {"op": "not", "of": never} if truth else never


def _op(name: str, parts: list[Predicate]) -> Predicate:
    return {"op": name, "of": parts}


def _compared(on: Evaluation, left: ast.expr, name: str, right: ast.expr) -> Truth:
    one: Any = on.value(left)
    items = right.elts if isinstance(right, ast.Set) else None
    other: Any = on.value(right) if items is None else [on.value(item) for item in items]
    if not is_symbolic(one) and not is_symbolic(other):
        if not (is_exact(one) and is_exact(other)):
            raise CannotCompile(on.step, "a condition looks at an object")
        return COMPARISONS[name](one, other)
    if is_symbolic(one) and is_symbolic(other):
        raise CannotCompile(on.step, "it compares two values of the server")
    is_left = is_symbolic(one)
    value, given = (one, other) if is_left else (other, one)
    if not isinstance(value, Ref) or value.kind is not None:
        raise CannotCompile(on.step, "its condition is not about a text or a parsed value")
    if items is not None and not value.is_text:
        raise CannotCompile(on.step, "it looks for a value that may be a list in a set")
    relation = (_LEFT if is_left else _RIGHT)[name]
    if name.startswith("Is") and given is not None:
        raise CannotCompile(on.step, "no predicate of the server does this comparison")
    asked = {"op": "python", "is": relation, "value": _constant_of(on, given, relation)}
    truth = _asked(value, asked)
    return negated(truth) if name in _NEGATED else truth


def _constant_of(on: Evaluation, given: Any, relation: str) -> Any:
    """A value of the client that JSON carries as it is."""
    is_tuple = relation == "in" and type(given) is tuple  # a list of JSON never equals a tuple
    if is_tuple or (type(given) is list and relation in ("in", "==")):
        return [_constant_of(on, item, "") for item in given]
    if type(given) is str:
        if not can_be_sent(given):
            raise CannotCompile("condition", "it has half of a surrogate pair")
        return given
    is_number = type(given) is float and math.isfinite(given)
    if type(given) is int and abs(given) <= _MAX_INT:
        is_number = True
    if is_number or given is None or type(given) is bool:
        return given
    raise CannotCompile(on.step, "it compares with something else than a plain value")


def _begun(on: Evaluation, text: Ref, op: str, given: Any) -> Truth:
    """`text.startswith(given)`, or `endswith`; with a tuple, one of its texts is enough."""
    texts = list(given) if type(given) is tuple else [given]
    if not texts or not all(type(one) is str and can_be_sent(one) for one in texts):
        raise CannotCompile(on.step, "no predicate of the server does this comparison")
    parts = [_asked(text, {"op": op, "value": one}).when for one in texts]
    return Condition(parts[0] if len(parts) == 1 else _op("any", parts))


def _asked(value: Ref, predicate: Mapping[str, Any]) -> Condition:
    specs = {"transforms": list(value.transforms)} if value.transforms else {}
    return Condition({**predicate, **specs, "var": value.var})


def _leaves(when: Predicate) -> Iterator[Predicate]:
    of = when.get("of")
    if of is None:
        yield when
    for part in of if isinstance(of, list) else [of] if of is not None else []:
        yield from _leaves(part)


def _placed(when: Predicate, before: Mapping[str, Iterable[Spec]]) -> Predicate:
    of = when.get("of")
    if isinstance(of, list):
        return {**when, "of": [_placed(part, before) for part in of]}
    if of is not None:
        return {**when, "of": _placed(of, before)}
    made = {name: option for name, option in when.items() if name != "var"}
    if transforms := [*before[when["var"]], *made.pop("transforms", ())]:
        made["transforms"] = transforms
    return made
