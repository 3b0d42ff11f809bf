"""Writes the recipes that are looked for first as notebooks, each beside its program.

    python cookbook/notebooks.py                       # all of them
    python cookbook/notebooks.py agents/sql_agent.py   # one

A notebook has the program's docstring as text, its imports and constants, a cell for each function
and class, and a last cell that runs it. Git ignores notebooks, because the programs are committed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

COOKBOOK = Path(__file__).parent
# The chat in a browser is a web server, which does not run in a notebook.
RECIPES = (
    "langchain/extraction.py",
    "langchain/evaluation.py",
    "agents/sql_agent.py",
    "agents/mcp_agent.py",
    "agents/supervisor.py",
)


def notebook(program: str, name: str) -> dict[str, Any]:
    """The notebook of a program, as nbformat 4 describes it. `name` is the program's file."""
    text, *code = cells(program)
    beginning = f"import sys\n\nsys.argv, __file__ = [{name!r}], {name!r}"
    made = [
        {"cell_type": "markdown", "metadata": {}, "source": text},
        *(
            {
                "cell_type": "code",
                "execution_count": None,
                "metadata": {},
                "outputs": [],
                "source": source,
            }
            for source in (beginning, *code)
        ),
    ]
    for number, cell in enumerate(made):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def cells(program: str) -> Iterator[str]:
    """The docstring as Markdown, and then the program's code in parts."""
    first, *statements = ast.parse(program).body
    assert isinstance(first, ast.Expr), "a recipe begins with a docstring"
    yield ast.get_docstring(ast.parse(program)) or ""
    lines, begin = program.splitlines(), first.end_lineno or 0
    part: list[ast.stmt] = []
    for statement in statements:
        defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if part and (defines or isinstance(statement, ast.If)):
            yield _source(lines, begin, part)
            begin, part = part[-1].end_lineno or begin, []
        if isinstance(statement, ast.If):
            yield _ending(_source(lines, begin, [statement]))
            begin = statement.end_lineno or begin
            continue
        part.append(statement)
        if defines:
            yield _source(lines, begin, part)
            begin, part = statement.end_lineno or begin, []


def _source(lines: Sequence[str], begin: int, part: Sequence[ast.stmt]) -> str:
    """The lines from `begin` to the end of the last statement, with the comments before them."""
    return "\n".join(lines[begin : part[-1].end_lineno]).strip("\n")


def _ending(block: str) -> str:
    """What `if __name__ == "__main__":` runs, as a cell runs it: with the loop of the notebook, and
    without an exit."""
    body = textwrap.dedent(block.partition(":\n")[2])
    body = re.sub(r"\basyncio\.run\((.*)\)(\)?)$", r"await \1\2", body, flags=re.MULTILINE)
    return re.sub(r"\bsys\.exit\((.*)\)$", r"\1", body, flags=re.MULTILINE)


def main() -> None:
    for name in sys.argv[1:] or RECIPES:
        path = COOKBOOK / name
        target = path.with_suffix(".ipynb")
        made = notebook(path.read_text(), path.name)
        target.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        print(target.relative_to(COOKBOOK))


if __name__ == "__main__":
    main()
