"""The hashes of the kernels for a GPU, by which what is kept of them is known to be of today.

It needs only the standard library, so that a test without torch can compare results with kernels.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parents[2] / "kernels" / "weftline_kernels"
CUTTING = ("tiles.py", "device_tiles.py")
# Comments, white space, and commas before a closing bracket.
_FORMATTING = re.compile(r"#.*|\s+|,(?=\s*[)\]}])")
_ROW = re.compile(r"\{\n {4}([^{}]*?)\n {3}\}")


def kernel_hashes(folder: Path = KERNELS) -> dict[str, str]:
    """The SHA-256 of each file with kernels for a GPU, and of those that cut a step for them.

    Comments and the breaks of lines are left out: a formatter changes no result.
    """
    texts = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
    return {
        name: hashlib.sha256(_FORMATTING.sub("", text).encode()).hexdigest()
        for name, text in texts.items()
        if "\n@kernel\n" in text or name in CUTTING
    }


def in_rows(report: Any, sort_keys: bool = False) -> str:
    """The JSON of a report, in which a row is a line, so that it is a line of a diff."""
    return _ROW.sub(_on_one_line, json.dumps(report, indent=1, sort_keys=sort_keys)) + "\n"


def _on_one_line(row: re.Match[str]) -> str:
    return "{" + re.sub(r"\s*\n\s*", " ", row[1]) + "}"
