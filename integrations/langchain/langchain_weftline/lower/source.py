"""Finds the syntax tree of a function that takes one value, and checks that it is its own."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

Function = ast.Lambda | ast.FunctionDef


def place_of(runnable: Any) -> str:
    """The file and line of the user's function in a runnable or a tool; empty if it has none."""
    functions = (getattr(runnable, name, None) for name in ("func", "afunc", "coroutine"))
    function = next((one for one in functions if isinstance(one, FunctionType)), None)
    if function is None:
        return ""
    code = inspect.unwrap(function).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def function_source(function: FunctionType) -> tuple[Function, tuple[str, ...]] | None:
    """The tree of `function` and its parameters' names, or None where they cannot be found.

    All parameters but the first have defaults, as in `lambda value, number=number: ...`.

    A file may have changed since it was imported, and a line may have several lambdas. So a tree is
    returned only if it compiles to the same bytecode as `function`.
    """
    try:
        lines, _ = inspect.findsource(function)
        functions = _functions("".join(lines))
    except (OSError, SyntaxError):
        return None
    code = function.__code__
    for node in functions.get(code.co_firstlineno, ()):
        names = _parameters(node.args)
        if names and _same(_compiled(node, names, code.co_freevars), code):
            return node, names
    return None


@lru_cache(maxsize=64)
def _functions(source: str) -> dict[int, list[Function]]:
    """The functions of a file, by the line where their code starts."""
    found: dict[int, list[Function]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(node)
        elif isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0] if node.decorator_list else node
            found.setdefault(first.lineno, []).append(node)
    return found


# LangChain gives a function more arguments if it has parameters of these names.
_GIVEN = frozenset({"config", "run_manager"})


def _parameters(arguments: ast.arguments) -> tuple[str, ...]:
    """The names of the parameters; none where LangChain would call the function in another way."""
    names = tuple(one.arg for one in arguments.args)
    if arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        return ()
    return names if len(arguments.defaults) == len(names) - 1 and _GIVEN.isdisjoint(names) else ()


def _compiled(node: Function, parameters: tuple[str, ...], free: tuple[str, ...]) -> CodeType:
    """The code of `node`, compiled inside a function whose parameters are its free variables."""
    statement: ast.stmt
    if isinstance(node, ast.Lambda):
        statement = ast.Return(value=ast.Lambda(args=_arguments(*parameters), body=node.body))
    else:
        statement = _definition(node.name, parameters, node.body)
    outer = _definition("outer", free, [statement])
    module = ast.fix_missing_locations(ast.Module(body=[outer], type_ignores=[]))
    code = compile(module, "<chain>", "exec", dont_inherit=True)
    for _ in ("outer", "node"):
        code = next(const for const in code.co_consts if isinstance(const, CodeType))
    return code


def _definition(name: str, parameters: tuple[str, ...], body: list[ast.stmt]) -> ast.FunctionDef:
    extra: dict[str, Any] = {"type_params": []} if sys.version_info >= (3, 12) else {}
    return ast.FunctionDef(
        name=name, args=_arguments(*parameters), body=body, decorator_list=[], **extra
    )


def _arguments(*names: str) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name in names],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )


def _same(one: CodeType, other: CodeType) -> bool:
    def names(code: CodeType) -> tuple[object, ...]:
        return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars

    return (
        names(one) == names(other)
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same_constant, one.co_consts, other.co_consts))
    )


def _same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _same(one, other)
    return repr(one) == repr(other)  # 1, 1.0 and True are equal, but not the same constant
