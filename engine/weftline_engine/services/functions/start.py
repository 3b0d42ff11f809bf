"""How the process of a function is started: as a plain child, or in a sandbox."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

from weftline_engine.services.functions.config import FunctionConfig
from weftline_engine.services.tools.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Makes the command and the environment of each process of one function."""

    config: FunctionConfig
    sandbox: Sandbox | None

    @staticmethod
    def of(config: FunctionConfig) -> ProcessStart:
        """The start of a function's processes. If it needs a sandbox, the sandbox is tested, which
        takes a second. Raises CannotSandbox."""
        if not config.sandbox:
            return ProcessStart(config, None)
        # The folder in which the server was started may hold secrets.
        path = sys.path if sys.flags.safe_path else sys.path[1:]
        own = [] if config.path is None else [config.path]
        made = Sandbox.of(
            config.target[0],
            config.limits,
            env=config.env,
            user=config.user,
            path=[*own, *path],
        )
        made.check()
        return ProcessStart(config, made)

    def command(self) -> list[str]:
        """The command line of the next process."""
        if self.sandbox is None:
            return [
                sys.executable,
                "-m",
                "weftline_engine.services.functions.function_worker",
                self.config.call,
            ]
        running = self.sandbox.running()
        return self.sandbox.command(
            "--function",
            self.config.target[1],
            "--limits",
            json.dumps(asdict(self.config.limits)),
            *([] if running is None else ["--running", str(running)]),
        )

    def environment(self) -> dict[str, str]:
        """The environment of the next process."""
        if self.sandbox is not None:
            return self.sandbox.environment
        return self.config.environment(os.environ)
