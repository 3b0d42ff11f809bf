"""The recipes as notebooks: run cell by cell, each prints what its program prints."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from cookbook import notebooks
from tests.integrations import test_cookbook_agents as agents
from tests.integrations import test_cookbook_evaluation as evaluation
from tests.integrations import test_cookbook_extraction as extraction
from tests.integrations.conftest import StartServer

RULES = {
    "langchain/extraction.py": extraction.rules(),
    "langchain/evaluation.py": evaluation.RULES,
    "agents/sql_agent.py": agents.SQL,
    "agents/mcp_agent.py": agents.MCP,
    "agents/supervisor.py": agents.SUPERVISOR,
}


async def run_cells(cells: list[str]) -> None:
    """Run code as a notebook does: in one module, with `await` in a cell, and in a running loop."""
    module: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        code = compile(cell, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert isinstance(code, CodeType)
        result = eval(code, module)  # noqa: S307 - our own recipes
        if inspect.isawaitable(result):
            await result


@pytest.mark.parametrize("name", notebooks.RECIPES)
def test_a_notebook_prints_what_its_program_prints(
    name: str,
    start_script: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = notebooks.COOKBOOK / name
    monkeypatch.setenv("WEFTLINE_BASE_URL", start_script(RULES[name]))
    monkeypatch.chdir(path.parent)  # where Jupyter runs it
    monkeypatch.setattr("sys.argv", [path.name])
    try:
        runpy.run_path(path.name, run_name="__main__")
    except SystemExit as end:
        assert end.code == 1  # of an evaluation below its threshold
    printed = capsys.readouterr().out
    made = notebooks.notebook(path.read_text(), path.name)
    text, *code = made["cells"]
    assert text["source"] == ast.get_docstring(ast.parse(path.read_text()))
    asyncio.run(run_cells([cell["source"] for cell in code]))
    assert capsys.readouterr().out == printed != ""


def test_notebooks_are_files_that_jupyter_opens() -> None:
    """Each has the fields that nbformat 4.5 demands, and an id for each cell."""
    for name in notebooks.RECIPES:
        made = notebooks.notebook((notebooks.COOKBOOK / name).read_text(), Path(name).name)
        assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in made["cells"]]
        assert len(set(ids)) == len(ids) > 4
        code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_command_writes_them_beside_the_programs(tmp_path: Path) -> None:
    cookbook = shutil.copytree(notebooks.COOKBOOK, tmp_path / "cookbook")
    done = subprocess.run(
        [sys.executable, str(cookbook / "notebooks.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    written = done.stdout.split()
    assert written == [name.replace(".py", ".ipynb") for name in notebooks.RECIPES]
    made = json.loads((cookbook / written[0]).read_text())
    path = notebooks.COOKBOOK / notebooks.RECIPES[0]
    assert made == notebooks.notebook(path.read_text(), path.name)
