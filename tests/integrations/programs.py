"""Runs the programs of our pages in this process, where their imports are made already."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any


def run_here(program: str, folder: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run `program` as a main program that knows `names`. Return the names that it leaves.

    It gets a file in `folder`, so that its functions have a source.
    """
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    return runpy.run_path(str(path), names, run_name="__main__")
