"""Evaluates small pure functions, such as a chain's lambdas, over symbolic values.

It reads their syntax tree, and never calls the user's code. A function is pure if it consists of
the nodes in `_NODES`: literals, subscripts, f-strings, `+`, `%`, conditions on the client's values,
comprehensions, methods of texts and dicts, messages, and a few builtins.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MappingProxyType
from typing import Any

from langchain_weftline.lower.source import Function, function_source
from langchain_weftline.lower.symbols import (
    Answer,
    CannotCompile,
    Fragment,
    Local,
    Ref,
    Text,
    is_symbolic,
    item_of,
    joined,
    settled,
    shown,
    string_pieces,
)
from langchain_weftline.lower.texts import (
    COMPARISONS,
    MESSAGES,
    formatted,
    is_exact,
    method,
    percent,
    said,
)

_BUILTINS = (dict, enumerate, len, list, range, str, tuple, zip)
_CONSTANTS = (str, int, float, bool, type(None))

# Bounds a comprehension over the client's own values, which may be endless.
MAX_ITEMS = 100_000


def apply_pure(function: Callable[..., Any], value: Any) -> Any:
    """The result of `function(value)`, symbolic where `value` is.

    Raises CannotCompile if the function is not pure.
    """
    step = f"function {getattr(function, '__name__', function)!r}"
    if not isinstance(function, FunctionType):
        raise CannotCompile(step, "it is not a plain Python function")
    source = function_source(function)
    if source is None:
        raise CannotCompile(step, "no source of one plain parameter can be found for it")
    node, parameter = source
    return _Evaluation(function, step, {parameter: value}).run(node)


class _Evaluation:
    """One call of a pure function: its names, and a method for each kind of node."""

    def __init__(self, function: FunctionType, step: str, names: dict[str, Any]) -> None:
        self._step = step
        self._names = names
        self._globals = function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells = dict(cells)

    def run(self, node: Function) -> Any:
        if isinstance(node, ast.Lambda):
            return self._value(node.body)
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant()):  # a docstring
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                    self._names[name] = self._value(expression)
                case ast.Return(value=ast.expr() as expression):
                    return self._value(expression)
                case _:
                    raise self._impure(statement)
        return None

    def _impure(self, node: ast.AST) -> CannotCompile:
        return CannotCompile(self._step, f"its {type(node).__name__} is not known to be pure")

    def _value(self, node: ast.expr) -> Any:
        evaluate = _NODES.get(type(node))
        if evaluate is None:
            raise self._impure(node)
        return evaluate(self, node)

    def _concrete(self, node: ast.expr) -> Any:
        value = self._value(node)
        if is_symbolic(value):
            raise CannotCompile(self._step, "a key or a separator is a value of the server")
        return value

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self._names:
            return self._names[name]
        if name in self._cells:
            found = self._cells[name].cell_contents
        else:
            found = self._globals.get(name, getattr(builtins, name, None))
        if type(found) in _CONSTANTS or _is_builtin(found) or any(found is m for m in MESSAGES):
            return found
        raise CannotCompile(self._step, f"its name {name!r} is no constant")

    def _dict(self, node: ast.Dict) -> Any:
        made: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self._value(item)
            if key is not None:
                made[self._concrete(key)] = value
            elif isinstance(value, dict):
                made |= value
            else:
                raise CannotCompile(self._step, "it unpacks something that is not a dict")
        return made

    def _list(self, node: ast.List | ast.Tuple) -> list[Any]:
        made: list[Any] = []
        for item in node.elts:
            if not isinstance(item, ast.Starred):
                made.append(self._value(item))
                continue
            items = self._value(item.value)
            if not isinstance(items, (list, tuple)):
                raise CannotCompile(self._step, "it unpacks something that is not a list")
            made += items
        return made

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._list(node))

    def _subscript(self, node: ast.Subscript) -> Any:
        container, key = self._value(node.value), self._concrete(node.slice)
        if isinstance(container, (dict, list, tuple)):
            return container[key]
        return item_of(container, key, self._step)

    def _slice(self, node: ast.Slice) -> Any:
        parts = (node.lower, node.upper, node.step)
        return slice(*(part and self._concrete(part) for part in parts))

    def _unary(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return not self._plain(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return -self._concrete(node.operand)
        raise self._impure(node)

    def _plain(self, node: ast.expr) -> Any:
        """A value that decides: the client must have it, and no code of the user may look at it."""
        value = self._value(node)
        if is_symbolic(value):
            raise CannotCompile(self._step, "a condition looks at a value of the server")
        if not is_exact(value):
            raise CannotCompile(self._step, "a condition looks at an object")
        return value

    def _choice(self, node: ast.IfExp) -> Any:
        return self._value(node.body if self._plain(node.test) else node.orelse)

    def _logic(self, node: ast.BoolOp) -> Any:
        *first, last = node.values
        for item in first:
            value = self._plain(item)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return self._value(last)

    def _compare(self, node: ast.Compare) -> Any:
        left = self._plain(node.left)
        for operator, item in zip(node.ops, node.comparators, strict=True):
            right = self._plain(item)
            if not COMPARISONS[type(operator).__name__](left, right):
                return False
            left = right
        return True

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if isinstance(owner, Answer) and node.attr in ("content", "text"):
            return owner.text
        raise self._impure(node)

    def _f_string(self, node: ast.JoinedStr) -> Any:
        pieces: list[Fragment] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                pieces.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue), "f-strings have no other parts"
            if part.format_spec is not None or part.conversion not in (-1, ord("s"), ord("r")):
                raise CannotCompile(self._step, "an f-string has a format")
            quoted = part.conversion == ord("r")
            pieces += shown(self._value(part.value), self._step, quoted=quoted)
        return settled(pieces)

    def _binary(self, node: ast.BinOp) -> Any:
        left, right = self._value(node.left), self._value(node.right)
        if isinstance(node.op, ast.Mod) and type(left) is str:
            return percent(left, right, self._step)
        if not isinstance(node.op, ast.Add):
            raise self._impure(node)
        if isinstance(left, list) and isinstance(right, list):
            return left + right
        if is_symbolic(left) or is_symbolic(right):
            return settled([*string_pieces(left, self._step), *string_pieces(right, self._step)])
        if type(left) in _CONSTANTS and type(right) in _CONSTANTS:
            return left + right
        raise self._impure(node)

    def _call(self, node: ast.Call) -> Any:
        values = self._arguments(node)
        named = {str(keyword.arg): self._value(keyword.value) for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func, values, named)
        function = self._value(node.func)
        if any(function is cls for cls in MESSAGES):
            return said(function, values, named, self._step)
        if not _is_builtin(function):
            raise self._impure(node)
        if function is str and len(values) == 1 and not named:
            return settled(shown(values[0], self._step))
        if any(isinstance(value, (Ref, Answer, Local, Text)) for value in values):
            raise self._unknown_length()
        if any(keyword.arg is None for keyword in node.keywords):
            raise self._impure(node)
        return function(*values, **named)

    def _arguments(self, node: ast.Call) -> list[Any]:
        if any(isinstance(item, ast.Starred) for item in node.args):
            raise self._impure(node)
        return [self._value(item) for item in node.args]

    def _method(self, node: ast.Attribute, values: list[Any], named: dict[str, Any]) -> Any:
        owner = self._value(node.value)
        if type(owner) is str and node.attr == "format":
            return formatted(owner, values, named, self._step)
        if named:
            raise CannotCompile(self._step, f"it calls {node.attr!r}, which may do anything")
        if type(owner) is str and node.attr == "join" and len(values) == 1:
            return self._join(owner, values[0])
        return method(owner, node.attr, values, self._step)

    def _join(self, separator: str, values: Any) -> Any:
        if isinstance(values, Ref):
            return values.then({"op": "join", "separator": separator}, is_text=True)
        if not isinstance(values, (list, tuple, dict)):
            raise CannotCompile(self._step, "it joins something that is not a list")
        return joined(separator, list(values), self._step)

    def _list_loop(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        return [self._value(node.elt) for _ in self._each(node.generators)]

    def _dict_loop(self, node: ast.DictComp) -> Any:
        loop = self._each(node.generators)
        return {self._concrete(node.key): self._value(node.value) for _ in loop}

    def _each(self, generators: list[ast.comprehension]) -> Iterator[None]:
        """Bind the loop's names to each item in turn."""
        [loop, *more] = generators
        if more or loop.is_async:
            raise CannotCompile(self._step, "its comprehension has several loops")
        items = self._items(loop.iter)
        if isinstance(items, (Ref, Answer, Local, Text)):
            raise self._unknown_length()
        if not isinstance(items, (dict, list, tuple, range, enumerate, zip)):
            raise self._impure(loop)
        outer = dict(self._names)
        for count, item in enumerate(items):
            if count >= MAX_ITEMS:
                raise CannotCompile(self._step, f"it loops more than {MAX_ITEMS} times")
            self._bind(loop.target, item)
            if all(self._plain(test) for test in loop.ifs):
                yield
        self._names = outer

    def _items(self, node: ast.expr) -> Any:
        """What a loop goes over. The views of a dict occur only here."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=of, attr="items" | "keys" | "values" as view),
                args=[],
                keywords=[],
            ):
                owner = self._value(of)
                if type(owner) is dict:
                    return list(getattr(owner, view)())
        return self._value(node)

    def _bind(self, target: ast.expr, item: Any) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = item
        elif isinstance(target, ast.Tuple) and isinstance(item, (list, tuple)):
            for name, part in zip(target.elts, item, strict=True):
                self._bind(name, part)
        else:
            raise self._impure(target)

    def _unknown_length(self) -> CannotCompile:
        return CannotCompile(self._step, "the length of a value of the server is not known here")


def _is_builtin(found: object) -> bool:
    return any(found is one for one in _BUILTINS)  # `in` would call the user's `==`


_NODES: Mapping[type[ast.expr], Callable[[_Evaluation, Any], Any]] = MappingProxyType(
    {
        ast.Attribute: _Evaluation._attribute,
        ast.BinOp: _Evaluation._binary,
        ast.BoolOp: _Evaluation._logic,
        ast.Call: _Evaluation._call,
        ast.Compare: _Evaluation._compare,
        ast.Constant: _Evaluation._constant,
        ast.Dict: _Evaluation._dict,
        ast.DictComp: _Evaluation._dict_loop,
        ast.GeneratorExp: _Evaluation._list_loop,
        ast.IfExp: _Evaluation._choice,
        ast.JoinedStr: _Evaluation._f_string,
        ast.List: _Evaluation._list,
        ast.ListComp: _Evaluation._list_loop,
        ast.Name: _Evaluation._name,
        ast.Slice: _Evaluation._slice,
        ast.Subscript: _Evaluation._subscript,
        ast.Tuple: _Evaluation._tuple,
        ast.UnaryOp: _Evaluation._unary,
    }
)
