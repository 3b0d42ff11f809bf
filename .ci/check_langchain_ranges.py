"""Tries both adapters with the oldest and the newest LangChain and openai that our ranges admit.

In an interpreter of its own: the unit tests run there with sockets disabled, then tests and the
README's programs against null servers of this interpreter. Tests of accelerated graphs run there
with several versions of LangGraph, whose graphs are run and copied in ways of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path
from typing import Any, cast

from weftline.local import local_server

ROOT = Path(__file__).parents[1]
ADAPTER = ROOT / "integrations" / "langchain"
LLAMA = ROOT / "integrations" / "llamaindex"
SOURCES = (
    "client",
    "server",
    "engine",
    "kernels",
    "integrations/langchain",
    "integrations/llamaindex",
)
UNIT = ADAPTER / "tests" / "unit_tests"
# What depends most on the insides of LangChain and of the openai client, whose texts of errors
# differ from version to version, and a first look at LlamaIndex beside them.
TESTS = tuple(
    ROOT / "tests" / "integrations" / f"test_{name}.py"
    for name in (
        "lowering",
        "pure",
        "provenance_pieces",
        "chat_weftline",
        "chat_weftline_standard",
        "ahead_tools",
        "ahead_maps",
        "like_plain",
        "bad_server",
        "responses",
        "response_items",
        "llms_weftline",
    )
)
GRAPHS = tuple(
    ROOT / "tests" / "integrations" / f"test_{name}.py"
    for name in ("accelerate_graph", "graph_copies", "graph_nodes")
)
# The LangGraphs to try with the oldest and with the newest LangChain, each with agents of its time.
# A later langgraph-prebuilt, which LangGraph 1.0.0 admits, too, needs a later LangGraph.
OLD_GRAPHS = (
    ("langgraph==1.0.0", "langgraph-prebuilt==1.0.0", "langchain==1.0.0"),
    ("langgraph==1.1.0", "langgraph-prebuilt==1.0.8", "langchain==1.2.11"),
)
NEW_GRAPHS = (("langgraph<2", "langchain<2"),)
WORKERS = "2"
TOOLS = (
    "langchain-tests>=1.1,<2",
    "jinja2>=3.1",
    "hypothesis>=6.130",
    "pytest-rerunfailures>=15.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "h11>=0.16",
    "httpx2>=2.16,<3",
)


def main() -> int:
    """Exit code 0 if both pass."""
    openai = [one for one in _project(ROOT)["optional-dependencies"]["dev"] if one[:7] == "openai>"]
    ranges = [*_dependencies(ADAPTER), *_dependencies(LLAMA), *openai]
    tried = [one for one in ranges if one.startswith(("langchain", "openai"))]
    oldest = [re.sub(r">=([\d.]+).*", r"==\1", one) for one in tried]
    with tempfile.TemporaryDirectory(prefix="weftline-langchain-") as folder:
        venv.create(Path(folder) / "venv", with_pip=False)
        python = Path(folder) / "venv" / "bin" / "python"
        for name, wanted, graphs in (
            ("oldest", [*ranges, *oldest], OLD_GRAPHS),
            ("newest", ranges, NEW_GRAPHS),
        ):
            began = time.monotonic()
            pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile")
            _run(*pip, "--upgrade", *wanted, *TOOLS)
            _check(python, Path(folder))
            for packages in graphs:
                _run(*pip, "--upgrade", *wanted, *packages)
                _show(python, "langgraph", "langchain", "langchain-core")
                _test(python, *GRAPHS)
            print(f"PASS {name} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


def _project(folder: Path) -> dict[str, Any]:
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    return cast("dict[str, Any]", tomllib.loads(text)["project"])


def _dependencies(adapter: Path) -> list[str]:
    """What an adapter depends on beside our own client."""
    return [one for one in _project(adapter)["dependencies"] if not one.startswith("weftline")]


def _check(python: Path, folder: Path) -> None:
    _show(python, "openai", "langchain-core", "langchain-openai", "langchain-tests")
    _show(python, "llama-index-core")
    _pytest(python, UNIT)
    _test(python, *TESTS)
    programs = re.findall(r"```python\n(.*?)```", (ADAPTER / "README.md").read_text(), re.DOTALL)
    program = folder / "program.py"
    # Programs of LangGraph need a package that the adapter does not.
    program.write_text("\n".join(one for one in programs if "langgraph" not in one))
    with local_server("--engine", "null") as url:
        _run(python, program, env={"WEFTLINE_BASE_URL": url})


def _show(python: Path, *names: str) -> None:
    """Print the versions of packages."""
    show = f"import importlib.metadata as m; print(*(f'{{n}} {{m.version(n)}}' for n in {names}))"
    _run(python, "-c", show)


def _test(python: Path, *tests: Path) -> None:
    """Run test files beside one another, against servers of this interpreter."""
    by_file = ("-n", WORKERS, "--dist", "loadfile")
    _pytest(python, *by_file, *tests, env={"WEFTLINE_SERVER_PYTHON": sys.executable})


def _pytest(python: Path, *arguments: str | Path, env: dict[str, str] | None = None) -> None:
    # Other versions of LangChain have other deprecations, which are not what is tried here.
    test = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable")
    again = os.environ.get("RERUNS", "").split()
    _run(*test, "-W", "default", *again, *arguments, env=env)


def _run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    paths = os.pathsep.join(str(ROOT / folder) for folder in SOURCES)
    ours = os.environ | {"PYTHONPATH": paths} | (env or {})
    subprocess.run([str(part) for part in command], cwd=ROOT, env=ours, check=True)


if __name__ == "__main__":
    sys.exit(main())
