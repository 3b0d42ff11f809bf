"""Evaluates small pure functions, such as a chain's lambdas, over symbolic values.

This module reads the syntax tree of a function, and never calls the user's code. A function is pure
if it has only the nodes in `_NODES`: literals, subscripts, f-strings, `+`, `%`, conditions,
comprehensions, methods of texts and dicts, messages, and a few builtins. A condition on a value of
the server needs a `Decide`, which lets the server decide.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

from langchain_core.runnables import Runnable

from langchain_weftline.lower.source import Function, function_source
from langchain_weftline.lower.symbols import (
    AnswerMessage,
    CannotCompile,
    Fragment,
    HoleText,
    Ref,
    ValueKind,
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
    length,
    method,
    percent,
    said,
)
from weftline.contract.transforms.base import MAX_OPTION_CHARS

_DOCUMENTS = (ValueKind.DOCUMENTS, ValueKind.UNIQUE_DOCUMENTS)
_BUILTINS = (dict, enumerate, len, list, range, str, tuple, zip)
_CONSTANTS = (str, int, float, bool, type(None))

# The most items of a comprehension over the client's own values, which may be an endless iterator.
MAX_ITEMS = 100_000
# The most conditions of one function. Each may double the work of evaluating it.
MAX_CONDITIONS = 8


@dataclass(frozen=True, slots=True)
class RoutedChain:
    """The result of a function that returns a chain: LangChain runs the chain on the same value."""

    runnable: Runnable[Any, Any]


Part = Callable[[], Any]
Decide = Callable[["Evaluation", ast.expr, Part, Part], Any]
"""Returns what a condition on a value of the server chooses: the first part if it holds."""


def apply_pure(function: Callable[..., Any], value: Any, decide: Decide | None = None) -> Any:
    """The result of `function(value)`, symbolic where `value` is. With `decide` it may be a
    `RoutedChain`.

    Raises CannotCompile if the function is not pure.
    """
    node, evaluation = evaluation_of(function, value, decide)
    return evaluation.run(node, evaluation.value if decide is None else evaluation.result)


def evaluation_of(
    function: Callable[..., Any], value: Any, decide: Decide | None = None
) -> tuple[Function, Evaluation]:
    """The tree of `function`, and what evaluates its nodes for `value`.

    Raises CannotCompile if its source is not known.
    """
    step = f"function {getattr(function, '__name__', function)!r}"
    if not isinstance(function, FunctionType):
        raise CannotCompile(step, "it is not a plain Python function")
    source = function_source(function)
    if source is None:
        raise CannotCompile(
            step, "its source cannot be read, or it takes more than one plain parameter"
        )
    node, (parameter, *more) = source
    defaults = function.__defaults__ or ()
    if len(defaults) != len(more) or not all(map(is_exact, defaults)):
        raise CannotCompile(step, "a default of its parameters is an object")
    return node, Evaluation(
        function, step, {parameter: value, **dict(zip(more, defaults, strict=True))}, decide
    )


class Evaluation:
    """One call of a pure function: its names, and the values of nodes."""

    def __init__(
        self, function: FunctionType, step: str, names: dict[str, Any], decide: Decide | None
    ) -> None:
        self.step = step
        self.names = names
        self.globals = function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self.cells = dict(cells)
        self._decide = decide
        self._conditions = 0

    def run(self, node: Function, result: Callable[[ast.expr], Any]) -> Any:
        """The value that `result` makes of the expression that the function returns."""
        return result(node.body) if isinstance(node, ast.Lambda) else self._run(node.body, result)

    def _run(self, body: Sequence[ast.stmt], result: Callable[[ast.expr], Any]) -> Any:
        for number, statement in enumerate(body, 1):
            match statement:
                case ast.Expr(value=ast.Constant()):  # a docstring
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                    self.names[name] = self.value(expression)
                case ast.Return(value=ast.expr() as expression):
                    return result(expression)
                case ast.If(test=test, body=then, orelse=other):
                    ways = ([*way, *body[number:]] for way in (then, other))
                    return self.choose(test, *(partial(self._run, way, result) for way in ways))
                case _:
                    raise self.impure(statement)
        return None

    def choose(self, test: ast.expr, then: Part, other: Part) -> Any:
        """The value of `then` if `test` holds, and otherwise the value of `other`."""
        if self._decide is None:
            return then() if self.plain(test) else other()
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise CannotCompile(self.step, f"it has more than {MAX_CONDITIONS} conditions")
        return self._decide(self, test, then, other)

    def result(self, node: ast.expr) -> Any:
        """The result of the function: the value of an expression, or a chain that the expression
        names."""
        match node:
            case ast.IfExp(test=test, body=then, orelse=other):
                return self.choose(test, lambda: self.result(then), lambda: self.result(other))
            case ast.Name(id=name) if name not in self.names:
                found = self.find(name)
                if isinstance(found, Runnable):
                    return RoutedChain(found)
        return self.value(node)

    def find(self, name: str) -> Any:
        """The value of a name outside the function."""
        if name in self.cells:
            return self.cells[name].cell_contents
        return self.globals.get(name, getattr(builtins, name, None))

    def impure(self, node: ast.AST) -> CannotCompile:
        source = ast.unparse(node).strip().partition("\n")[0][:60]
        return CannotCompile(self.step, f"it has {source!r}, which may do anything")

    def value(self, node: ast.expr) -> Any:
        evaluate = _NODES.get(type(node))
        if evaluate is None:
            raise self.impure(node)
        return evaluate(self, node)

    def concrete(self, node: ast.expr) -> Any:
        value = self.value(node)
        if is_symbolic(value):
            raise CannotCompile(self.step, "a key or a separator is a value of the server")
        return value

    def plain(self, node: ast.expr) -> Any:
        """A value that a condition needs. The client must have it, of a class without user code."""
        value = self.value(node)
        if is_symbolic(value):
            raise CannotCompile(self.step, "a condition looks at a value of the server")
        if not is_exact(value):
            raise CannotCompile(self.step, "a condition looks at an object")
        return value

    def unknown_length(self) -> CannotCompile:
        return CannotCompile(self.step, "the length of a value of the server is not known here")


def _constant(on: Evaluation, node: ast.Constant) -> Any:
    return node.value


def _name(on: Evaluation, node: ast.Name) -> Any:
    name = node.id
    if name in on.names:
        return on.names[name]
    found = on.find(name)
    if type(found) in _CONSTANTS or _is_builtin(found) or any(found is m for m in MESSAGES):
        return found
    raise CannotCompile(on.step, f"its name {name!r} is not a constant")


def _dict(on: Evaluation, node: ast.Dict) -> Any:
    made: dict[Any, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = on.value(item)
        if key is not None:
            made[on.concrete(key)] = value
        elif isinstance(value, dict):
            made |= value
        else:
            raise CannotCompile(on.step, "it unpacks something that is not a dict")
    return made


def _list(on: Evaluation, node: ast.List | ast.Tuple) -> list[Any]:
    made: list[Any] = []
    for item in node.elts:
        if not isinstance(item, ast.Starred):
            made.append(on.value(item))
            continue
        items = on.value(item.value)
        if not isinstance(items, (list, tuple)):
            raise CannotCompile(on.step, "it unpacks something that is not a list")
        made += items
    return made


def _tuple(on: Evaluation, node: ast.Tuple) -> Any:
    return tuple(_list(on, node))


def _subscript(on: Evaluation, node: ast.Subscript) -> Any:
    container, key = on.value(node.value), on.concrete(node.slice)
    if isinstance(container, (dict, list, tuple)):
        return container[key]
    return item_of(container, key, on.step)


def _slice(on: Evaluation, node: ast.Slice) -> Any:
    parts = (node.lower, node.upper, node.step)
    return slice(*(part and on.concrete(part) for part in parts))


def _unary(on: Evaluation, node: ast.UnaryOp) -> Any:
    if isinstance(node.op, ast.Not):
        return not on.plain(node.operand)
    if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -on.concrete(node.operand)
    raise on.impure(node)


def _choice(on: Evaluation, node: ast.IfExp) -> Any:
    return on.choose(node.test, lambda: on.value(node.body), lambda: on.value(node.orelse))


def _logic(on: Evaluation, node: ast.BoolOp) -> Any:
    """The first value that decides, and otherwise the last one."""
    first, *rest = node.values

    def others() -> Any:
        return on.value(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))

    def this() -> Any:
        return on.value(first)

    return on.choose(first, *((this, others) if isinstance(node.op, ast.Or) else (others, this)))


def _compare(on: Evaluation, node: ast.Compare) -> Any:
    left = on.plain(node.left)
    for operator, item in zip(node.ops, node.comparators, strict=True):
        right = on.plain(item)
        if not COMPARISONS[type(operator).__name__](left, right):
            return False
        left = right
    return True


def _attribute(on: Evaluation, node: ast.Attribute) -> Any:
    owner = on.value(node.value)
    if (
        isinstance(owner, AnswerMessage)
        and not owner.calls_tools
        and node.attr in ("content", "text")
    ):
        return owner.text
    if isinstance(owner, Ref) and owner.shape is not None:
        return owner.shape.attribute(owner, node.attr, on.step)
    raise on.impure(node)


def _f_string(on: Evaluation, node: ast.JoinedStr) -> Any:
    pieces: list[Fragment] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            pieces.append(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue), "f-strings have no other parts"
        if part.format_spec is not None or part.conversion not in (-1, ord("s"), ord("r")):
            raise CannotCompile(on.step, "an f-string has a format")
        quoted = part.conversion == ord("r")
        pieces += shown(on.value(part.value), on.step, quoted=quoted)
    return settled(pieces)


def _binary(on: Evaluation, node: ast.BinOp) -> Any:
    left, right = on.value(node.left), on.value(node.right)
    if isinstance(node.op, ast.Mod) and type(left) is str:
        return percent(left, right, on.step)
    if not isinstance(node.op, ast.Add):
        raise on.impure(node)
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    if is_symbolic(left) or is_symbolic(right):
        return settled([*string_pieces(left, on.step), *string_pieces(right, on.step)])
    if type(left) in _CONSTANTS and type(right) in _CONSTANTS:
        return left + right
    raise on.impure(node)


def _call(on: Evaluation, node: ast.Call) -> Any:
    if (texts := _joined_documents(on, node)) is not None:
        return texts
    values = _arguments(on, node)
    named = {str(keyword.arg): on.value(keyword.value) for keyword in node.keywords}
    if isinstance(node.func, ast.Attribute):
        return _method(on, node.func, values, named)
    function = on.value(node.func)
    if any(function is cls for cls in MESSAGES):
        return said(function, values, named, on.step)
    if not _is_builtin(function):
        raise on.impure(node)
    if function is str and len(values) == 1 and not named:
        return settled(shown(values[0], on.step))
    if function is len and len(values) == 1 and is_symbolic(values[0]) and not named:
        return _length(on, values[0])
    if any(isinstance(value, (Ref, AnswerMessage, HoleText)) for value in values):
        raise on.unknown_length()
    if any(keyword.arg is None for keyword in node.keywords):
        raise on.impure(node)
    return function(*values, **named)


def _length(on: Evaluation, value: Any) -> Any:
    return len(value) if isinstance(value, (dict, list, tuple)) else length(value, on.step)


def _joined_documents(on: Evaluation, node: ast.Call) -> Ref | None:
    """The texts of a search's documents, which the server joins: "x".join(d.page_content for ...).

    None for any other call.
    """
    match node:
        case ast.Call(
            func=ast.Attribute(value=before, attr="join"),
            args=[
                ast.GeneratorExp(
                    elt=ast.Attribute(value=ast.Name(id=read), attr="page_content"),
                    generators=[ast.comprehension(target=ast.Name(id=item), iter=of, ifs=[])],
                )
                | ast.ListComp(
                    elt=ast.Attribute(value=ast.Name(id=read), attr="page_content"),
                    generators=[ast.comprehension(target=ast.Name(id=item), iter=of, ifs=[])],
                )
            ],
            keywords=[],
        ) if read == item:
            documents, separator = on.value(of), on.value(before)
            if not isinstance(documents, Ref) or documents.kind not in _DOCUMENTS:
                return None
            if type(separator) is not str or len(separator) > MAX_OPTION_CHARS:
                return None
            spec: dict[str, Any] = {"op": "texts", "separator": separator}
            if documents.kind is ValueKind.UNIQUE_DOCUMENTS:
                spec["unique"] = True
            return replace(documents.then(spec, is_text=True), kind=None)
    return None


def _arguments(on: Evaluation, node: ast.Call) -> list[Any]:
    if any(isinstance(item, ast.Starred) for item in node.args):
        raise on.impure(node)
    return [on.value(item) for item in node.args]


def _method(on: Evaluation, node: ast.Attribute, values: list[Any], named: dict[str, Any]) -> Any:
    owner = on.value(node.value)
    if type(owner) is str and node.attr == "format":
        return formatted(owner, values, named, on.step)
    if named:
        raise CannotCompile(on.step, f"it calls {node.attr!r}, which may do anything")
    if type(owner) is str and node.attr == "join" and len(values) == 1:
        return _join(on, owner, values[0])
    return method(owner, node.attr, values, on.step)


def _join(on: Evaluation, separator: str, values: Any) -> Any:
    if isinstance(values, Ref) and values.kind is None:
        return values.then({"op": "join", "separator": separator}, is_text=True)
    if not isinstance(values, (list, tuple, dict)):
        raise CannotCompile(on.step, "it joins something that is not a list")
    return joined(separator, list(values), on.step)


def _list_loop(on: Evaluation, node: ast.ListComp | ast.GeneratorExp) -> Any:
    return [on.value(node.elt) for _ in _each(on, node.generators)]


def _dict_loop(on: Evaluation, node: ast.DictComp) -> Any:
    loop = _each(on, node.generators)
    return {on.concrete(node.key): on.value(node.value) for _ in loop}


def _each(on: Evaluation, generators: list[ast.comprehension]) -> Iterator[None]:
    """Bind the loop's names to each item in turn."""
    [loop, *more] = generators
    if more or loop.is_async:
        raise CannotCompile(on.step, "its comprehension has several loops")
    items = _items(on, loop.iter)
    if isinstance(items, (Ref, AnswerMessage, HoleText)):
        raise on.unknown_length()
    if not isinstance(items, (dict, list, tuple, range, enumerate, zip)):
        raise on.impure(loop)
    outer = dict(on.names)
    for count, item in enumerate(items):
        if count >= MAX_ITEMS:
            raise CannotCompile(on.step, f"it loops more than {MAX_ITEMS} times")
        _bind(on, loop.target, item)
        if all(on.plain(test) for test in loop.ifs):
            yield
    on.names = outer


def _items(on: Evaluation, node: ast.expr) -> Any:
    """The items that a loop iterates over. Views of a dict are allowed only here."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=of, attr="items" | "keys" | "values" as view),
            args=[],
            keywords=[],
        ):
            owner = on.value(of)
            if type(owner) is dict:
                return list(getattr(owner, view)())
    return on.value(node)


def _bind(on: Evaluation, target: ast.expr, item: Any) -> None:
    if isinstance(target, ast.Name):
        on.names[target.id] = item
    elif isinstance(target, ast.Tuple) and isinstance(item, (list, tuple)):
        for name, part in zip(target.elts, item, strict=True):
            _bind(on, name, part)
    else:
        raise on.impure(target)


def _is_builtin(found: object) -> bool:
    return any(found is one for one in _BUILTINS)  # `in` would call the user's `==`


_NODES: Mapping[type[ast.expr], Callable[[Evaluation, Any], Any]] = MappingProxyType(
    {
        ast.Attribute: _attribute,
        ast.BinOp: _binary,
        ast.BoolOp: _logic,
        ast.Call: _call,
        ast.Compare: _compare,
        ast.Constant: _constant,
        ast.Dict: _dict,
        ast.DictComp: _dict_loop,
        ast.GeneratorExp: _list_loop,
        ast.IfExp: _choice,
        ast.JoinedStr: _f_string,
        ast.List: _list,
        ast.ListComp: _list_loop,
        ast.Name: _name,
        ast.Slice: _slice,
        ast.Subscript: _subscript,
        ast.Tuple: _tuple,
        ast.UnaryOp: _unary,
    }
)
