"""A code interpreter as a tool: each Python statement runs when it is written.

`[[tool]] module = "weftline_engine.services.tools.interpreter"`, with `sandbox = true`.
"""

from __future__ import annotations

import ast
import codeop
import io
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, ClassVar

from weftline.sdk.toolkit import Reject, StreamingTool

NEEDS_SANDBOX = True  # the code is the model's
MOST_CHARS = 20_000  # of the output that the model gets; the middle of a longer one is left out
NAME = "<code>"


class Python(StreamingTool):
    """Run Python code. The result is what it prints, and the values of its expressions."""

    name = "python"
    effects = "none"  # in its sandbox
    timeout_s = 30
    parameters: ClassVar = {"code": str}

    def __init__(self) -> None:
        super().__init__()
        self._globals: dict[str, Any] = {"__name__": "__main__"}
        self._compile = codeop.Compile()  # remembers imports from __future__
        self._printed = io.StringIO()
        self._ran = 0  # statements
        self._lines = 0  # of the code before the next statement

    def statement(self, name: str, code: str) -> None:
        """Run a statement. An error stops the model's turn."""
        self._run(code)

    def finish(self) -> str:
        return _shortened(self._printed.getvalue())

    def _run(self, code: str) -> None:
        source = "\n" * self._lines + code
        self._lines += code.count("\n")
        try:
            for one in ast.parse(source).body:
                self._run_one(one)
        except BaseException as error:
            said = "".join(traceback.format_exception_only(error)).strip()
            if isinstance(error, SyntaxError):
                said = f"{type(error).__name__}: {error.msg}"
            line = self._line_of(error)
            where = "" if line is None else f" in line {line}"
            before = f"{self._ran} statement{'' if self._ran == 1 else 's'} ran before"
            printed = _shortened(self._printed.getvalue())
            told = f", and printed:\n{printed}" if printed else "."
            raise Reject(f"{said}{where}\n{before}{told}") from None

    def _run_one(self, statement: ast.stmt) -> None:
        shown = isinstance(statement, ast.Expr)  # as at Python's prompt
        body: Any = ast.Interactive([statement]) if shown else ast.Module([statement], [])
        code = self._compile(body, NAME, "single" if shown else "exec")
        with redirect_stdout(self._printed), redirect_stderr(self._printed):
            exec(code, self._globals)  # noqa: S102 - in a sandbox
        self._ran += 1

    def _line_of(self, error: BaseException) -> int | None:
        if isinstance(error, SyntaxError):
            return error.lineno
        frames = traceback.extract_tb(error.__traceback__)
        lines = [one.lineno for one in frames if one.filename == NAME]
        return lines[-1] if lines else None


def _shortened(text: str) -> str:
    text = text.rstrip("\n")
    if len(text) <= MOST_CHARS:
        return text
    half, left_out = MOST_CHARS // 2, f"... {len(text) - MOST_CHARS:,} characters are left out ..."
    return f"{text[:half]}\n{left_out}\n{text[-half:]}"
