"""The import rules of the tree: which layer may import which, and what the core may need.

    adapter → SDK → HTTP → cluster → http → observe → runtime → journal → lowering → session
    → schedule → passes → prompt → graph → weftline.contract

Each layer of the server imports those to its right, and the modules of the client that hold the
contract. Engines are reached by weftline_engine.api; only the composition root, which decides
what runs, names them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "client",
    "server",
    "engine",
    "kernels",
    "integrations/langchain",
    "integrations/llamaindex",
)

CONTRACT = ("weftline.contract",)
_CLIENT = ("weftline",)
_ADAPTER = ("weftline",)

# The layers of the server, lowest first: each may import the contract and those before it.
_LAYERS = (
    "graph",
    "prompt",
    "passes",
    "schedule",
    "session",
    "lowering",
    "journal",
    "runtime",
    "observe",
    "http",
    "cluster",
)
_ENGINES = (
    "schedule",
    "session",
    "lowering",
    "journal",
    "runtime",
    "observe",
    "http",
    "cluster",
    "prompt",
)  # know engines by their contract
_SERVER = {
    f"weftline_server.{layer}": (
        *CONTRACT,
        *(("weftline_engine.api",) if layer in _ENGINES else ()),
        *(("weftline_server.config",) if layer in ("observe", "http", "cluster") else ()),
        *(f"weftline_server.{below}" for below in _LAYERS[:at]),
    )
    for at, layer in enumerate(_LAYERS)
}
# The graph makes its plain data in the way of the engines' contract, and knows nothing else of it.
_SERVER["weftline_server.graph"] += ("weftline_engine.api.record",)
# The runtime has one face: the layers above import nothing else of it. Logs render a prompt anew.
_SERVER["weftline_server.observe"] += ("weftline_server.runtime.prompts",)
for _layer in ("observe", "http"):
    _SERVER[f"weftline_server.{_layer}"] = tuple(
        "weftline_server.runtime.service" if name == "weftline_server.runtime" else name
        for name in _SERVER[f"weftline_server.{_layer}"]
    )

# By the longest prefix of a module's name: what of ours it may import, itself aside. The order of
# the server's layers is the order of these lines.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "weftline": (),
    "weftline.contract": (),
    "weftline.sdk": CONTRACT,
    "weftline.kit": (*CONTRACT, "weftline.sdk"),
    "langchain_weftline": _ADAPTER,
    "llama_index.llms.weftline": _ADAPTER,
    "llama_index.embeddings.weftline": _ADAPTER,
    "llama_index.vector_stores.weftline": _ADAPTER,
    "llama_index.postprocessor.weftline": _ADAPTER,
    "llama_index.response_synthesizers.weftline": (*_ADAPTER, "llama_index.llms.weftline"),
    **_SERVER,
    # Ray places what the command line describes: an engine, a server.
    "weftline_server.cluster.ray": (
        *CONTRACT,
        "weftline_engine.api",
        "weftline_engine.transport.tcp",
        "weftline_server",
    ),
    # The composition root and its parts: the configuration, the wiring, the commands.
    "weftline_server": (*CONTRACT, "weftline_engine.api", "weftline_server"),
    "weftline_server.cli": (*CONTRACT, "weftline_engine.own.models", "weftline_server"),
    "weftline_server.commands": (*_CLIENT, "weftline_engine", "weftline_server"),
    # Names the kernels that the engine's process would load, without starting one.
    "weftline_server.commands.doctor": (
        *_CLIENT,
        "weftline_engine",
        "weftline_kernels.cpu",
        "weftline_server",
    ),
    "weftline_engine": (*CONTRACT, "weftline_engine"),
    "weftline_engine.api": (),
    # Runs what authors of tools write with the client's toolkit.
    "weftline_engine.services.tools": (*CONTRACT, "weftline.sdk.toolkit", "weftline_engine"),
    "weftline_engine.own.models": (),
    # Vectors are the one value that is no JSON.
    "weftline_engine.transport.wire": ("weftline.contract.vectors", "weftline_engine.api"),
    "weftline_engine.transport.tcp": (
        *CONTRACT,
        "weftline_engine.api",
        "weftline_engine.transport.wire",
    ),
    # Loads a model in the engine's own process, with the decoder that this machine can compile.
    "weftline_engine.own.loading": (*CONTRACT, "weftline_engine", "weftline_kernels"),
    # Checks sampling parameters by their table.
    "weftline_engine.bookkeeping": (*CONTRACT, "weftline_engine.api"),
    "weftline_engine.bookkeeping.kv": ("weftline_engine.api",),
    "weftline_engine.bookkeeping.schedule": (
        "weftline_engine.api",
        "weftline_engine.bookkeeping.kv",
    ),
    "weftline_engine.own.embedded": (
        "weftline_engine.api",
        "weftline_engine.bookkeeping",
        "weftline_engine.own.free_memory",
        "weftline_kernels",
    ),
    "weftline_engine.own.free_memory": (),
    "weftline_kernels": (),
}
OURS = ("weftline", "weftline_server", "weftline_engine", "weftline_kernels", "langchain_weftline")

FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not {"build", "dist", ".venv", "tests"} & set(path.relative_to(ROOT).parts)
)


def module_name(path: Path) -> str:
    """The dotted name under which `path` of our tree is imported."""
    folder = next(ROOT / name for name in FOLDERS if path.is_relative_to(ROOT / name))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_under(module: str, prefix: str) -> bool:
    """Whether `module` is `prefix` or inside it."""
    return module == prefix or module.startswith(prefix + ".")


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[str, int]]:
    """Every module that `source` imports, at any depth, with its line."""
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
    """The imports in `source`, the file of `module`, that its layer may not make."""
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
    """Every import of our packages is one that the file's layer may make."""
    source = path.read_text(encoding="utf-8")
    assert violations(source, module_name(path), path.name == "__init__.py") == []


# What makes the application of one server or of several: config.py has the settings of both.
JOINS = ("app.py", "config.py", "commands/", "cluster/")


def test_few_know_that_there_are_several_servers() -> None:
    """Only what puts the application together imports `cluster/`; the rest has two seams: the
    journal's SessionStore, and the middleware that passes requests on.
    """
    server = ROOT / "server/weftline_server"
    found = [
        inside
        for path in sorted(server.rglob("*.py"))
        if not (inside := path.relative_to(server).as_posix()).startswith(JOINS)
        and any(
            is_under(name, "weftline_server.cluster")
            for name, _ in imports(path.read_text(encoding="utf-8"), module_name(path))
        )
    ]
    assert found == []


_BENCH = re.compile(r"^\s*(?:from|import) bench\b", re.MULTILINE)


def test_only_tests_of_benchmarks_import_bench() -> None:
    """A test of the product stands on no benchmark, nor does a program in its text."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "benchmarks" not in path.parts and _BENCH.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "line", "allowed"),
    [
        ("weftline_server.session.x", "from weftline_server.graph.graph import Graph", True),
        (
            "weftline_server.graph.x",
            "from weftline_server.session.session import ServerSession",
            False,
        ),
        ("weftline_server.graph.x", "import weftline_server.session", False),
        ("weftline_server.graph.x", "from weftline_server import session", False),
        ("weftline_server.graph.x", "from ..session import session", False),
        ("weftline_server.passes.x", "from weftline_server.schedule.placement import app", False),
        ("weftline_server.schedule.x", "from weftline_server.session.call import Call", False),
        ("weftline_server.session.x", "from weftline_server.http import session_routes", False),
        ("weftline_server.session.x", "from weftline_engine.pretend.null import NullEngine", False),
        ("weftline_server.session.x", "from weftline_engine.api import Op", True),
        ("weftline_server.http.x", "def f():\n    from weftline_engine.pretend import null", False),
        ("weftline_server.http.x", "from weftline_server.runtime.service import Service", True),
        ("weftline_server.http.x", "from weftline_server.runtime.driver import Driver", False),
        ("weftline_server.observe.x", "from weftline_server.runtime import driver", False),
        ("weftline_server.http.x", "from weftline_server.cluster.relay import SessionRelay", False),
        ("weftline_server.cluster.x", "from weftline_server.http.state import GRACE", True),
        ("weftline_server.commands.x", "from weftline_engine.pretend.null import NullEngine", True),
        ("weftline_server.session.x", "from weftline.sdk.client import Client", False),
        ("weftline_server.session.x", "from weftline.contract.protocol import Call", True),
        ("weftline_engine.api", "from weftline_engine.pretend.null import NullEngine", False),
        ("weftline_engine.own.embedded.x", "from weftline_kernels.rope import rope", True),
        ("weftline_engine.own.embedded.x", "from weftline_server.graph.graph import Graph", False),
        (
            "weftline_engine.bookkeeping.x",
            "from weftline_engine.own.embedded.step_inputs import x",
            False,
        ),
        ("weftline_engine.bookkeeping.kv.x", "import weftline_engine.bookkeeping.schedule", False),
        ("weftline_engine.pretend.null", "from weftline_server.session.call import Call", False),
        ("weftline_kernels.x", "from weftline_engine.api import Op", False),
        ("weftline.sdk.client", "from weftline_server.app import create_app", False),
        ("weftline.contract.x", "from weftline.sdk.session_base import SessionBase", False),
        ("weftline.sdk.x", "from weftline.kit.feed import RunFeed", False),
        ("weftline_server.session.x", "from weftline.errors import Timeout", False),
        ("langchain_weftline.x", "from weftline_server.app import create_app", False),
        ("langchain_weftline.x", "from weftline import Client", True),
    ],
)
def test_a_reversed_import_is_found(module: str, line: str, allowed: bool) -> None:
    """The check itself, on one line that `module` may or may not contain."""
    assert (violations(line, module) == []) is allowed


# The circles of imports that remain, each as its modules. This table may only shrink.
CIRCLES: frozenset[tuple[str, ...]] = frozenset(
    {
        # Types alone: an extent names its node of the tree, and a node its extent.
        ("weftline_engine.bookkeeping.kv.extents", "weftline_engine.bookkeeping.kv.tree"),
    }
)


def circles(sources: Mapping[str, tuple[str, bool]]) -> set[tuple[str, ...]]:
    """The groups of modules that import each other, directly or through others.

    `sources` has the text of each module, and whether it is a package. An import counts wherever it
    stands: in a function, and below `if TYPE_CHECKING`.
    """

    def known(name: str) -> str:
        while name and name not in sources:
            name = name.rpartition(".")[0]
        return name

    direct = {
        module: {known(name) for name, _ in imports(text, module, is_package)} - {module, ""}
        for module, (text, is_package) in sources.items()
    }

    def reached(module: str) -> set[str]:
        found, left = set[str](), list(direct[module])
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += direct[name]
        return found

    all_reached = {module: reached(module) for module in sources}
    return {
        tuple(sorted(other for other in below if module in all_reached[other]))
        for module, below in all_reached.items()
        if module in below
    }


def test_no_new_circle_of_imports() -> None:
    """No modules import each other, apart from those of the table."""
    sources = {
        module_name(path): (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for path in FILES
    }
    assert circles(sources) == CIRCLES


def test_a_circle_of_imports_is_found() -> None:
    """Three modules in a circle, by an import for types and one in a function; a fourth beside."""
    sources = {
        "a": ("", True),
        "a.one": ("if TYPE_CHECKING:\n    from a.two import Two", False),
        "a.two": ("def f():\n    from a import three", False),
        "a.three": ("from a.one import One\nfrom a.four import Four", False),
        "a.four": ("import os", False),
    }
    assert circles(sources) == {("a.one", "a.three", "a.two")}


def rooms(sources: Mapping[str, tuple[str, bool]], package: str) -> set[tuple[str, str]]:
    """Each pair of parts of `package` of which the first imports the second."""

    def room(module: str) -> str:
        return module.removeprefix(f"{package}.").partition(".")[0]

    return {
        (room(module), room(name))
        for module, (text, is_package) in sources.items()
        if module.startswith(f"{package}.")
        for name, _ in imports(text, module, is_package)
        if name.startswith(f"{package}.") and room(name) != room(module)
    }


def test_the_engine_has_few_rooms() -> None:
    """A newcomer to the engine sees at most 8 parts, and 14 arrows between them."""
    sources = {
        module_name(path): (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for path in FILES
    }
    arrows = rooms(sources, "weftline_engine")
    inside = ROOT / "engine/weftline_engine"
    parts = {path.stem for path in inside.iterdir() if any(path.rglob("*.py"))}
    parts |= {path.stem for path in inside.glob("*.py")} - {"__init__"}
    assert sorted(parts) == [
        "api",
        "bookkeeping",
        "own",
        "pretend",
        "remote",
        "services",
        "transport",
    ]
    assert len(arrows) <= 14, sorted(arrows)


def test_an_arrow_between_rooms_is_found() -> None:
    """Two imports of one room are one arrow, and an import within a room is none."""
    sources = {
        "we": ("import we.api", True),
        "we.own.a": ("from we.own import b\nfrom we.api import Op\nimport we.api.ops", False),
        "we.api.ops": ("def f():\n    from we.own.a import A", False),
    }
    assert rooms(sources, "we") == {("own", "api"), ("api", "own")}


# Packages that must import on a machine with PYTHONPATH, numpy, torch and triton alone.
CORE = (
    "weftline_kernels",
    "weftline_engine.bookkeeping",
    "weftline_engine.own.embedded",
    "weftline_server.graph",
    "weftline_server.passes",
    "weftline_server.session",
    "weftline_server.schedule.placement",
)
_BARE_IMPORT = """
import importlib, pkgutil, sys
ours = ("weftline", "weftline_server", "weftline_engine", "weftline_kernels")
sources = tuple(sys.path[:4])
class Refuse:
    def find_spec(self, name, path=None, target=None):
        # Packages may try imports of their own; only imports by our own files are refused.
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
    """Import `module` and all below it, and refuse our files every other package.

    Returns the last line of the error, or "".
    """
    paths = [str(root / folder) for folder in ("client", "server", "engine", "kernels")]
    program = f"import sys; sys.path[:0] = {paths!r}\n{_BARE_IMPORT}"
    done = subprocess.run([sys.executable, "-c", program, module], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


@pytest.mark.parametrize("module", CORE)
def test_the_core_needs_numpy_torch_and_triton_alone(module: str) -> None:
    """Each imports in a process of its own that refuses our files any other import."""
    assert import_bare(module) == ""


def test_a_foreign_import_in_the_core_is_found(tmp_path: Path) -> None:
    """The refusal itself: a module imports httpx2 in a function that runs at import."""
    package = tmp_path / "server" / "weftline_server" / "session"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "bad.py").write_text("def f():\n    import httpx2\nf()\n")
    said = import_bare("weftline_server.session", tmp_path)
    assert said == "ImportError: weftline_server.session.bad imports httpx2"
