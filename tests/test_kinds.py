"""The kinds of primitives: what one is stands in its own file, and nobody else tests its name."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from weftline.contract.steps import STEPS
from weftline_server.lowering.kinds import KINDS

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "server/weftline_server"
# The files of the kinds, and their registry.
OWN = {
    *(f"lowering/kinds/{path.name}" for path in (SERVER / "lowering/kinds").glob("*.py")),
    *(f"lowering/control/{name}.py" for name in ("branch", "each", "loop")),
}
# An engine announces by name which kinds of op it takes; it may run in another process.
OF_OPS = {"schedule/placement/round_data.py"}
# The reference of the HTTP interface describes each field by its name.
DOCUMENTS = {"http/reference/meanings.py"}
CLASSES = {cls.__name__ for cls in STEPS.values()}
NAMES = {*STEPS, "tool", "take", "gather", "until"}
FILES = sorted(
    path
    for path in SERVER.rglob("*.py")
    if path.relative_to(SERVER).as_posix() not in OWN | OF_OPS | DOCUMENTS
)


def kinds_tested(source: str) -> list[int]:
    """The lines in which `source` tests what kind something is by its name or by its class."""
    nodes: list[Any] = list(filter(_tests, ast.walk(ast.parse(source))))
    return sorted({node.lineno for node in nodes})


def _tests(node: Any) -> bool:
    """Whether the node is a test of a kind."""
    match node:
        case ast.Compare(left=left, comparators=others):
            return _compares([left, *others])
        case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]) | ast.Subscript(slice=key):
            return _is_kind(key)
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
            return any(map(_is_class, ast.walk(classes)))
        case ast.MatchClass(cls=cls):
            return _is_class(cls)
        case ast.Set(elts=found) | ast.Tuple(elts=found) | ast.List(elts=found):
            return len(_names(found)) > 1
        case ast.Dict(keys=found):
            return len(_names(found)) > 1
        case ast.Attribute(value=ast.Name(id="Kind"), attr="FILL" | "GENERATE"):
            return True
    return False


def _compares(sides: list[ast.expr]) -> bool:
    """Whether a kind is compared with names of kinds. A variable `kind` may hold another."""
    if any(map(_is_kind, sides)):
        return any(map(_is_name, sides))
    return any(isinstance(one, ast.Name) and one.id == "kind" for one in sides) and bool(
        _names(sides)
    )


def _is_kind(node: ast.expr) -> bool:
    """Whether the expression is somebody's kind."""
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _is_kind(inner)
        case ast.Attribute(attr="kind"):
            return True
    return False


def _is_name(node: ast.expr) -> bool:
    """Whether the expression is a name of a kind, or a constant that may hold some."""
    match node:
        case ast.Constant(value=str()) | ast.Set() | ast.Tuple() | ast.List():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper() and name != "PROMPT_KINDS"
    return False


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in CLASSES


def _names(found: Iterable[ast.expr | None]) -> set[str]:
    """The kinds that some expressions name."""
    values = {one.value for one in found if isinstance(one, ast.Constant)}
    return {name for name in NAMES if name in values}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SERVER)))
def test_no_module_tests_a_kind(path: Path) -> None:
    """What others want to know of a kind is a trait of its primitives, or said by its class."""
    assert kinds_tested(path.read_text(encoding="utf-8")) == [], "make it a trait of the kind"


@pytest.mark.parametrize(
    "line",
    [
        'if primitive.kind == "client": ...',
        'if primitive.kind in ("ingest", "delete"): ...',
        "if primitive.kind not in NO_ENGINE: ...",
        "if str(step.kind) != TOOL: ...",
        'names = frozenset({"gather", "until"})',
        'names = {"embed": "embedder", "function": "function"}',
        "found = names.get(primitive.kind)",
        'if kind == "client": ...',
        "found = names[primitive.kind]",
        "if isinstance(step, Embed | Rerank): ...",
        "match step:\n    case Search(): ...",
        "prompts = (Kind.FILL, Kind.GENERATE)",
    ],
)
def test_the_check_finds_a_test(line: str) -> None:
    """The check itself, on lines that may not stand in a module."""
    assert kinds_tested(line)


def test_the_check_lets_kinds_be_compared() -> None:
    """Whether two have the same kind, and whether an engine takes an op, needs no name."""
    assert kinds_tested("if one.kind == other.kind or op.kind in member.kinds: ...") == []


def test_every_step_has_a_kind() -> None:
    """What the wire has, the registry has, too."""
    assert set(KINDS.by_name) == set(STEPS)
