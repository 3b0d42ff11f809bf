"""The shape of the tree: how long a file, a function and a line may be, and what a class may show.

The limits on classes hold for code that is not a test. A class offers at most 12 public methods,
and nothing but the class itself touches its private members. A limit on all methods or attributes
would only move code to functions beside the class.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Collection, Iterator
from functools import cache
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
MAX_METHODS = 12  # public ones; a property is read like an attribute, and does not count
MOST_RESULTS = 5000  # lines below bench/results
# A record may have a few fields more than an object that acts. These are flat because somebody else
# decides their form, or because their reader wants all fields at once.
MAX_FIELDS = 16
FLAT = {
    "SharedFields": "the fields of OpenAI's requests",
    "SamplingParams": "the sampling parameters of the APIs that engines know",
    "Description": "an engine's announcement, a pinned part of the contract",
    "EmbeddedConfig": "the command line of the engine's process",
    "Weftline": "the arguments of LlamaIndex's OpenAILike",
    "ServerConfig": "the settings of the [server] table",
    "SimulatedConfig": "the properties of an engine, of which each test changes one or two",
    "EngineLoad": "one engine as a round of placement sees it",
}

# Private members of libraries that have the name of one of ours, and whose they are.
FOREIGN = {
    "_exit": "os",
    "_replace": "typing.NamedTuple",
    "_generate": "langchain_openai.ChatOpenAI, which ChatWeftline extends",
    "_stream": "langchain_openai.ChatOpenAI",
    "_create_chat_result": "langchain_openai.ChatOpenAI",
    "_get_request_payload": "langchain_openai.ChatOpenAI",
    "_get_ls_params": "langchain_openai.ChatOpenAI",
    "_convert_input": "langchain_core's BaseChatModel",
    "_llm": "LlamaIndex's engines; tests/integrations/test_llama_members.py lists them",
    "_prompt": "LlamaIndex's selectors",
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


PRODUCT = [one for one in CHECKED if not is_test(one)]


def module_of(path: Path) -> str:
    """The dotted name under which a file of a package is imported; "" for a script."""
    for package in PACKAGES:
        if path.is_relative_to(ROOT / package):
            parts = path.relative_to(ROOT / package).with_suffix("").parts
            return ".".join(parts).removesuffix(".__init__")
    return ""


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


Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_property(method: Function) -> bool:
    """Whether a reader of the class sees an attribute instead of a method."""
    return any(
        "property" in ast.unparse(one) or ast.unparse(one).endswith((".setter", ".deleter"))
        for one in method.decorator_list
    )


def public_methods(node: ast.ClassDef) -> set[str]:
    """The names of the class's public methods."""
    return {
        one.name
        for one in node.body
        if isinstance(one, Function) and not one.name.startswith("_") and not is_property(one)
    }


def classes(source: str) -> Iterator[ast.ClassDef]:
    """All classes in `source`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node


def class_faults(source: str, module: str = "") -> list[str]:
    """The classes in `source` that are over their limits.

    A method that overrides one of a framework's class does not count: the framework decided that.
    """
    faults = []
    for node in classes(source):
        methods = public_methods(node)
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        if len(methods) > MAX_METHODS and node.bases and module:
            methods -= forced(module, node.name)
        if len(methods) > MAX_METHODS:
            faults.append(f"{node.name}: {len(methods)} public methods, at most {MAX_METHODS}")
        if len(fields) > MAX_FIELDS and node.name not in FLAT:
            faults.append(f"{node.name}: {len(fields)} fields, at most {MAX_FIELDS}")
    return faults


def forced(module: str, name: str) -> set[str]:
    """The names of members that classes of other packages give to this class."""
    found = getattr(importlib.import_module(module), name)
    others = [one for one in found.__mro__ if "weftline" not in one.__module__]
    return {member for one in others for member in vars(one)}


def own_members(node: ast.ClassDef) -> set[str]:
    """The private members that the class defines or stores."""
    found: set[str] = set()
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def reached(source: str, ours: Collection[str]) -> list[str]:
    """Where `source` reaches a private member of another object, of those that `ours` names.

    A class may touch its other instances, and a table below a class may name the class's methods.
    """
    tree = ast.parse(source)
    of_class = {node.name: own_members(node) for node in classes(source)}
    inside: dict[ast.expr, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for one in ast.walk(node):
                if isinstance(one, ast.Attribute):
                    inside.setdefault(one, set()).update(of_class[node.name])
    faults = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in ours or node.attr in FOREIGN:
            continue
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in {"self", "cls", *of_class}:
            continue
        if ast.unparse(owner) != "super()" and node.attr not in inside.get(node, ()):
            faults.append(f"line {node.lineno}: {ast.unparse(node)}")
    return faults


@cache
def private_members() -> frozenset[str]:
    """The private members of all of our classes."""
    sources = (path.read_text(encoding="utf-8") for path in PRODUCT)
    return frozenset(
        name for source in sources for node in classes(source) for name in own_members(node)
    )


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


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_a_class_has_one_job(path: Path) -> None:
    """Its public methods have an upper bound, and so have the fields of a record."""
    assert class_faults(path.read_text(encoding="utf-8"), module_of(path)) == []


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_what_is_private_is_left_alone(path: Path) -> None:
    """No function and no other class reaches a private member of one of our classes."""
    assert reached(path.read_text(encoding="utf-8"), private_members()) == []


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
    """One public method and one field too many. Private methods and properties do not count."""
    methods = "".join(f"    def m{i}(self): ...\n" for i in range(13))
    private = "".join(f"    def _m{i}(self): ...\n" for i in range(20))
    properties = "    @property\n    def p(self): ...\n    @p.setter\n    def p(self, to): ...\n"
    large = f"class Large:\n{methods}{private}{properties}"
    assert class_faults(large) == ["Large: 13 public methods, at most 12"]
    assert class_faults(large.replace("def m12", "def _m")) == []
    fields = "".join(f"    f{i}: int = 0\n" for i in range(17))
    assert class_faults(f"class Record:\n{fields}") == ["Record: 17 fields, at most 16"]
    assert class_faults(f"class EngineLoad:\n{fields}") == []


def test_methods_that_a_framework_asks_for_do_not_count() -> None:
    """An accelerated chain has LangChain's methods of every runnable, and a few of its own."""
    found = forced("langchain_weftline.ahead.accelerated_chain", "AcceleratedChain")
    assert {"invoke", "astream"} <= found and "explain" not in found


def test_the_reach_check_finds_a_private_member() -> None:
    """Of another object, from a function and from a class; not of the own class or a framework."""
    one = "class A:\n    def __init__(self, b):\n        self._b = b\n"
    assert reached(f"{one}\ndef f(a):\n    return a._b\n", {"_b"}) == ["line 6: a._b"]
    assert reached(f"{one}\nclass C:\n    def f(self, a):\n        a._b()\n", {"_b"}) == [
        "line 7: a._b"
    ]
    assert reached(f"{one}    def same(self, a):\n        return a._b\n", {"_b"}) == []
    assert reached(f"{one}TABLE = {{1: A._b}}\n", {"_b"}) == []
    assert reached("def f(a):\n    return a._b\n", {"_c"}) == []
    assert reached("import os\nos._exit(1)\n", {"_exit"}) == []


def test_the_splat_check_finds_a_tuple() -> None:
    """A tuple that is written out, and not one that has a name or a condition."""
    assert splats('x = (\n    *("a", "b"),\n    "c",\n)') == [2]
    assert splats('x = (*a, *(("b",) if a else ()), *f("c"))') == []
