"""The process in which one side of `weftline compare` runs the user's program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self


class ProgramFailed(Exception):
    """The program raised an exception, or its process has ended."""


class ProgramSide:
    """The program on one side, plain or accelerated, in a process of its own.

    The process starts once, because importing a framework takes seconds, and runs the program each
    time that it is asked to.
    """

    def __init__(
        self,
        side: str,
        url: str,
        model: str,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._side = side
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weftline.kit.program_run", side, "--model", model, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "WEFTLINE_BASE_URL": url},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if kind is not None:
            self._process.kill()
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self) -> dict[str, Any]:
        """One run's report, as `weftline.kit.program_run` writes it. Raises ProgramFailed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is reported below
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise ProgramFailed(f"the {self._side} program's process ended with exit code {code}")
        report: dict[str, Any] = json.loads(line)
        if report["error"] is not None:
            raise ProgramFailed(f"the {self._side} program failed: {report['error']}")
        return report
