"""llama-server as a child process: its version, its environment, and why it ended."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from weftline_engine.api import EngineDied
from weftline_engine.remote.llamacpp.config import SOCKET, LlamaPoolingConfig, LlamaServerConfig
from weftline_engine.remote.llamacpp.llama_program import PROGRAM, build_of, too_old
from weftline_engine.remote.llamacpp.state_cut import SPACING
from weftline_engine.remote.openai.child import MOST_CHARS, ChildProgram, ChildServer

POLL_S = 0.1
_CAUSE = re.compile(r"error|failed|unable|invalid|unknown|not enough", re.IGNORECASE)
# Variables of ours that it would not need, and those with which it would ask us for a key.
_WITHHELD = ("WEFTLINE_API_KEY", "WEFTLINE_ENGINE_KEY", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE")
# The least tokens between two checkpoints; 8,192 if it is not set. Programs that are older than its
# option ignore it.
_SPACING = "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"


class LlamaChild(ChildServer):
    """One llama-server."""

    def __init__(self, config: LlamaServerConfig | LlamaPoolingConfig) -> None:
        super().__init__(ChildProgram(PROGRAM, SOCKET, POLL_S, config.ready_s))
        self._config = config

    async def _prepared(self) -> tuple[Sequence[str], Mapping[str, str]]:
        assert self._config.llama_server is not None
        try:
            process = await asyncio.create_subprocess_exec(
                self._config.llama_server,
                "--version",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise EngineDied(
                f"the engine did not start: {self._config.llama_server} does not run "
                f"({error.strerror})"
            ) from error
        output, _ = await process.communicate()
        if refusal := too_old(build_of(output.decode(errors="replace"))):
            raise EngineDied(f"the engine did not start: {refusal}")
        environment = {key: value for key, value in os.environ.items() if key not in _WITHHELD}
        environment.setdefault(_SPACING, str(SPACING))
        return self._config.command(self._folder), environment

    def _cause(self) -> str:
        return cause(self._lines)


def cause(lines: Iterable[str]) -> str:
    """The error that ended llama-server: its last line about one, else its last line."""
    last, found = "it printed nothing", ""
    for line in lines:
        last = line
        if _CAUSE.search(line):
            found = line
    return (found or last).strip()[:MOST_CHARS]
