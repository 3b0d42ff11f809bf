"""The rules of the tree: who may import whom, how long a file may be, and what the core may need.

    adapter → SDK → HTTP → routes → session → schedule → passes → graph → weftline.protocol

Each layer of the server imports those to its right, and the modules of the client that hold the
contract. Engines are reached by weftline_engine.api; only the composition root, which decides
what runs, names them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    *("client", "server", "engine", "kernels", "integrations/langchain", "integrations/llamaindex"),
)
OTHERS = ("tests", "integrations/langchain/tests", "cookbook", "bench", "docs", ".ci")
MAX_FILE, MAX_FUNCTION, MAX_LINE = 400, 60, 100

CONTRACT = (
    *("weftline.errors", "weftline.protocol", "weftline.sampling", "weftline.template"),
    *("weftline.tools", "weftline.transforms"),
)
_CLIENT = ("weftline",)
_ADAPTER = ("weftline",)

# By the longest prefix of a module's name: what of ours it may import, itself aside. The order of
# the server's layers is the order of these lines.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "weftline": (),
    "langchain_weftline": _ADAPTER,
    "llama_index.llms.weftline": _ADAPTER,
    "llama_index.response_synthesizers.weftline": (*_ADAPTER, "llama_index.llms.weftline"),
    "weftline_server.graph": CONTRACT,
    "weftline_server.passes": (*CONTRACT, "weftline_server.graph"),
    "weftline_server.schedule": (
        *(*CONTRACT, "weftline_engine.api", "weftline_server.graph", "weftline_server.passes"),
    ),
    "weftline_server.session": (
        *(*CONTRACT, "weftline_engine.api", "weftline_server.graph", "weftline_server.passes"),
        "weftline_server.schedule",
    ),
    "weftline_server.routes": (
        *(*CONTRACT, "weftline_engine.api", "weftline_server.graph", "weftline_server.passes"),
        *("weftline_server.schedule", "weftline_server.session", "weftline_server.config"),
    ),
    # The composition root and its parts: the configuration, the wiring, the commands.
    "weftline_server": (*CONTRACT, "weftline_engine.api", "weftline_server"),
    "weftline_server.cli": (*CONTRACT, "weftline_engine.models", "weftline_server"),
    "weftline_server.commands": (*_CLIENT, "weftline_engine", "weftline_server"),
    "weftline_engine": (*CONTRACT, "weftline_engine"),
    "weftline_engine.api": (),
    "weftline_engine.models": (),
    # Loads a model in the engine's own process, with the decoder that this machine can compile.
    "weftline_engine.loading": (*CONTRACT, "weftline_engine", "weftline_kernels"),
    "weftline_engine.bookkeeping": ("weftline_engine.api",),
    "weftline_engine.bookkeeping.kv": ("weftline_engine.api",),
    "weftline_engine.bookkeeping.schedule": (
        "weftline_engine.api",
        "weftline_engine.bookkeeping.kv",
    ),
    "weftline_engine.embedded": (
        "weftline_engine.api",
        "weftline_engine.bookkeeping",
        "weftline_kernels",
    ),
    "weftline_kernels": (),
}
OURS = ("weftline", "weftline_server", "weftline_engine", "weftline_kernels", "langchain_weftline")

FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not {"build", "dist", ".venv", "tests"} & set(path.relative_to(ROOT).parts)
)
CHECKED = sorted([*FILES, *(path for name in OTHERS for path in (ROOT / name).rglob("*.py"))])


def module_name(path: Path) -> str:
    """The dotted name under which `path` of our tree is imported."""
    folder = next(ROOT / name for name in FOLDERS if path.is_relative_to(ROOT / name))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_under(module: str, prefix: str) -> bool:
    """Whether `module` is `prefix` or inside it."""
    return module == prefix or module.startswith(prefix + ".")


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[str, int]]:
    """Every module that `source` imports, wherever in it, with the line."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            # `from weftline_server import session` imports a module as much as a name.
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What `source`, as the file of `module`, imports that its layer may not."""
    rule = max((prefix for prefix in ALLOWED if is_under(module, prefix)), key=len)
    allowed = (rule, *ALLOWED[rule])
    return [
        f"{module}:{line} imports {name}, and {rule} may not"
        for name, line in imports(source, module, is_package)
        if any(is_under(name, ours) for ours in OURS)
        and not any(is_under(name, prefix) for prefix in allowed)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    """Every import of ours in every file is one that its layer may have."""
    source = path.read_text(encoding="utf-8")
    assert violations(source, module_name(path), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "line", "allowed"),
    [
        ("weftline_server.session.x", "from weftline_server.graph.graph import Graph", True),
        ("weftline_server.graph.x", "from weftline_server.session.session import Session", False),
        ("weftline_server.graph.x", "import weftline_server.session", False),
        ("weftline_server.graph.x", "from weftline_server import session", False),
        ("weftline_server.graph.x", "from ..session import session", False),
        ("weftline_server.passes.x", "from weftline_server.schedule.policy import app", False),
        ("weftline_server.schedule.x", "from weftline_server.session.call import Call", False),
        ("weftline_server.session.x", "from weftline_server.routes import sessions", False),
        ("weftline_server.session.x", "from weftline_engine.null import NullEngine", False),
        ("weftline_server.session.x", "from weftline_engine.api import Op", True),
        ("weftline_server.routes.x", "def f():\n    from weftline_engine import null", False),
        ("weftline_server.commands.x", "from weftline_engine.null import NullEngine", True),
        ("weftline_server.session.x", "from weftline.client import Client", False),
        ("weftline_server.session.x", "from weftline.protocol import Call", True),
        ("weftline_engine.api", "from weftline_engine.null import NullEngine", False),
        ("weftline_engine.embedded.x", "from weftline_kernels.rope import rope", True),
        ("weftline_engine.embedded.x", "from weftline_server.graph.graph import Graph", False),
        ("weftline_engine.bookkeeping.x", "from weftline_engine.embedded.step import x", False),
        ("weftline_engine.bookkeeping.kv.x", "import weftline_engine.bookkeeping.schedule", False),
        ("weftline_engine.null", "from weftline_server.session.call import Call", False),
        ("weftline_kernels.x", "from weftline_engine.api import Op", False),
        ("weftline.client", "from weftline_server.app import create_app", False),
        ("langchain_weftline.x", "from weftline_server.app import create_app", False),
        ("langchain_weftline.x", "from weftline import Client", True),
    ],
)
def test_a_reversed_import_is_found(module: str, line: str, allowed: bool) -> None:
    """The check itself, on one line that may or may not stand in `module`."""
    assert (violations(line, module) == []) is allowed


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_in_a_head(path: Path) -> None:
    """It says in its first line what it is; files, functions and lines have an upper bound."""
    source = path.read_text(encoding="utf-8")
    assert shape_faults(source) == []


def shape_faults(source: str) -> list[str]:
    """What is too long in `source`, or not said."""
    tree, lines = ast.parse(source), source.splitlines()
    faults = []
    if source.strip() and not (ast.get_docstring(tree) or "").strip():
        faults.append("no module docstring")
    if len(lines) > MAX_FILE:
        faults.append(f"{len(lines)} lines")
    faults += [f"line {n}: {len(text)} characters" for n, text in enumerate(lines, 1)
               if len(text) > MAX_LINE]  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                faults.append(f"{node.name} at line {node.lineno}: {length} lines")
    return faults


def test_the_shape_check_finds_what_is_too_long() -> None:
    """One fault of each kind."""
    body = "    x = 1\n" * 60
    assert shape_faults("x = 1\n") == ["no module docstring"]
    assert shape_faults(f'"""D."""\ndef f():\n{body}') == ["f at line 2: 61 lines"]
    assert shape_faults('"""D."""\n' + "#" * 101) == ["line 2: 101 characters"]
    assert shape_faults('"""D."""\n' * 401) == ["401 lines"]
    assert shape_faults("") == []


# What must import where nothing can be installed: PYTHONPATH, numpy, torch and triton.
CORE = (
    *("weftline_kernels", "weftline_engine.embedded", "weftline_engine.bookkeeping"),
    "weftline_server.session",
    *("weftline_server.graph", "weftline_server.passes", "weftline_server.schedule.policy"),
)
_BARE_IMPORT = """
import importlib, pkgutil, sys
ours = ("weftline", "weftline_server", "weftline_engine", "weftline_kernels")
sources = tuple(sys.path[:4])
class Refuse:
    def find_spec(self, name, path=None, target=None):
        # What torch and its like try for themselves is theirs; the first frame of ours counts.
        top = name.partition(".")[0]
        if top in (*ours, *sys.stdlib_module_names, "numpy", "torch", "triton"):
            return None
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(sources):
            raise ImportError(f"{frame.f_globals['__name__']} imports {name}")
        return None
sys.meta_path.insert(0, Refuse())
module = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
    importlib.import_module(found.name)
"""


def import_bare(module: str, root: Path = ROOT) -> str:
    """Import `module` and all below it, refusing our files every other package; what went wrong."""
    paths = [str(root / folder) for folder in ("client", "server", "engine", "kernels")]
    program = f"import sys; sys.path[:0] = {paths!r}\n{_BARE_IMPORT}"
    done = subprocess.run([sys.executable, "-c", program, module], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


@pytest.mark.parametrize("module", CORE)
def test_the_core_needs_numpy_torch_and_triton_alone(module: str) -> None:
    """In a process of its own, where our files are refused any other import."""
    assert import_bare(module) == ""


def test_a_foreign_import_in_the_core_is_found(tmp_path: Path) -> None:
    """The refusal itself: a session that imports httpx, inside a function called at import."""
    package = tmp_path / "server" / "weftline_server" / "session"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "bad.py").write_text("def f():\n    import httpx\nf()\n")
    said = import_bare("weftline_server.session", tmp_path)
    assert said == "ImportError: weftline_server.session.bad imports httpx"
