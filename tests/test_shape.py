"""The shape of the tree: how long a file, a function and a line may be, and how large a class.

The limits on classes hold for code that is not a test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.committed import committed

ROOT = Path(__file__).parents[1]
# Folders that hold one or more packages, and the other folders with code of ours.
PACKAGES = (
    "client",
    "server",
    "engine",
    "kernels",
    "integrations/langchain",
    "integrations/llamaindex",
)
OTHERS = ("tests", "cookbook", "bench", "docs", ".ci")
MAX_FILE, MAX_FUNCTION, MAX_LINE = 600, 60, 100
MAX_ATTRIBUTES, MAX_METHODS = 12, 20
MOST_RESULTS = 5000  # lines below bench/results
# A record may have a few fields more than an object that acts. These are flat because somebody else
# decides their form, or because their reader wants all fields at once.
MAX_FIELDS = 16
FLAT = {
    "SharedFields": "the fields of OpenAI's requests",
    "Description": "an engine's announcement, a pinned part of the contract",
    "Weftline": "the arguments of LlamaIndex's OpenAILike",
    "ServerConfig": "the settings of the [server] table",
    "EngineLoad": "one engine as a round of placement sees it",
}

SKIPPED = {"build", "dist", ".venv", "node_modules"}
CHECKED = sorted(
    path
    for folder in (*PACKAGES, *OTHERS)
    for path in (ROOT / folder).rglob("*.py")
    if not SKIPPED & set(path.relative_to(ROOT).parts)
)


def name_of(path: Path) -> str:
    """The path of a file inside the tree."""
    return path.relative_to(ROOT).as_posix()


def is_test(path: Path) -> bool:
    """Whether the file belongs to a test suite."""
    return "tests" in path.relative_to(ROOT).parts


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods below `node`."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield one


def shape_faults(source: str) -> list[str]:
    """Everything in `source` that is too long, and a missing module docstring."""
    tree, lines = ast.parse(source), source.splitlines()
    faults = []
    if source.strip() and not (ast.get_docstring(tree) or "").strip():
        faults.append("no module docstring")
    if len(lines) > MAX_FILE:
        faults.append(f"{len(lines)} lines")
    for number, text in enumerate(lines, 1):
        if len(text) > MAX_LINE:
            faults.append(f"line {number}: {len(text)} characters")
    for function in functions(tree):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > MAX_FUNCTION:
            faults.append(f"{function.name} at line {function.lineno}: {length} lines")
    return faults


def class_sizes(source: str) -> Iterator[tuple[str, int, int, int]]:
    """The name of each class, the number of attributes that its methods store on `self`, and the
    numbers of its methods and of its fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = [
                one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            stored = {
                one.attr
                for method in methods
                for one in ast.walk(method)
                if isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and isinstance(one.value, ast.Name)
                and one.value.id == "self"
            }
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            yield node.name, len(stored), len(methods), len(fields)


def class_faults(source: str) -> list[str]:
    """The classes in `source` that are over their limits."""
    faults = []
    for name, attributes, methods, fields in class_sizes(source):
        if attributes > MAX_ATTRIBUTES:
            faults.append(f"{name}: {attributes} attributes, at most {MAX_ATTRIBUTES}")
        if methods > MAX_METHODS:
            faults.append(f"{name}: {methods} methods, at most {MAX_METHODS}")
        if fields > MAX_FIELDS and name not in FLAT:
            faults.append(f"{name}: {fields} fields, at most {MAX_FIELDS}")
    return faults


def splats(source: str) -> list[int]:
    """The lines that unpack a tuple or list which is written out on the spot."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
    ]


@pytest.mark.parametrize("path", CHECKED, ids=name_of)
def test_a_file_fits_in_a_head(path: Path) -> None:
    """It has a docstring. Files, functions and lines have an upper bound."""
    assert shape_faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [one for one in CHECKED if not is_test(one)], ids=name_of)
def test_a_class_has_one_job(path: Path) -> None:
    """Its attributes and methods have an upper bound."""
    assert class_faults(path.read_text(encoding="utf-8")) == []


def test_a_tuple_is_written_plainly() -> None:
    """No file unpacks a tuple that it writes out on the spot; the formatter may wrap it instead."""
    found = {name_of(path) for path in CHECKED if splats(path.read_text(encoding="utf-8"))}
    assert not found, f"write these tuples plainly: {sorted(found)}"


def test_results_are_summaries() -> None:
    """Benchmark results keep medians and counts. All of them together stay small."""
    files = committed(ROOT / "bench" / "results")
    lines = sum(len(path.read_bytes().splitlines()) for path in files)
    assert 0 < lines < MOST_RESULTS


def test_the_shape_check_finds_what_is_too_long() -> None:
    """One fault of each kind."""
    body = "    x = 1\n" * MAX_FUNCTION
    assert shape_faults("x = 1\n") == ["no module docstring"]
    assert shape_faults(f'"""D."""\ndef f():\n{body}') == ["f at line 2: 61 lines"]
    assert shape_faults('"""D."""\n' + "#" * 101) == ["line 2: 101 characters"]
    assert shape_faults('"""D."""\n' * 601) == ["601 lines"]
    assert shape_faults("") == []


def test_the_class_check_finds_what_is_too_large() -> None:
    """One attribute, one method and one field too many."""
    stores = "".join(f"        self.a{i} = self.b{i}\n" for i in range(13))
    methods = "".join(f"    def m{i}(self): ...\n" for i in range(20))
    large = f"class Large:\n    def __init__(self):\n{stores}{methods}"
    assert class_faults(large) == [
        "Large: 13 attributes, at most 12",
        "Large: 21 methods, at most 20",
    ]
    fields = "".join(f"    f{i}: int = 0\n" for i in range(17))
    assert class_faults(f"class Record:\n{fields}") == ["Record: 17 fields, at most 16"]
    assert class_faults(f"class EngineLoad:\n{fields}") == []


def test_the_splat_check_finds_a_tuple() -> None:
    """A tuple that is written out, and not one that has a name or a condition."""
    assert splats('x = (\n    *("a", "b"),\n    "c",\n)') == [2]
    assert splats('x = (*a, *(("b",) if a else ()), *f("c"))') == []
