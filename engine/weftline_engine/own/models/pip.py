"""Finds a pip to run: this interpreter's, or the wheel that Python brings for `ensurepip`.

Environments made by uv and by `python -m venv --without-pip` have no pip of their own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WHEEL = re.compile(r"pip-(\d[\w.]*)-py3-none-any\.whl")


@dataclass(frozen=True, slots=True)
class Pip:
    """A pip that can be run: the first words of its command line, and its version."""

    command: tuple[str, ...]
    release: tuple[int, int]


def find_pip() -> Pip | None:
    """This interpreter's pip, else the newest wheel that Python brings; None without either.

    Nothing is installed: Python runs a wheel of pip as it is.
    """
    if importlib.util.find_spec("pip") is not None:
        return Pip((sys.executable, "-m", "pip"), _release(importlib.metadata.version("pip")))
    found = [(_release(match[1]), path) for path, match in _wheels()]
    if not found:
        return None
    release, path = max(found)
    return Pip((sys.executable, str(path / "pip")), release)


def _wheels() -> Iterator[tuple[Path, re.Match[str]]]:
    """The wheels of pip in the folder of ensurepip, or in the one that the distribution set."""
    folders = [Path(sysconfig.get_path("stdlib")) / "ensurepip" / "_bundled"]
    if packaged := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(packaged))
    for folder in folders:
        for path in folder.glob("pip-*.whl"):
            if match := _WHEEL.fullmatch(path.name):
                yield path, match


def _release(version: str) -> tuple[int, int]:
    parts = [int(part) if part.isdigit() else 0 for part in (*version.split("."), "0")]
    return parts[0], parts[1]
