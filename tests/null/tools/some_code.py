"""A tool that runs code which a model has written, for the tests of the sandbox."""

from __future__ import annotations

import contextlib
import io

from weftline.toolkit import tool


@tool(effects="none", timeout_s=240)
def python(code: str) -> str:
    """Run Python, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})  # noqa: S102 - the sandbox is what is tested
    return printed.getvalue().strip()
