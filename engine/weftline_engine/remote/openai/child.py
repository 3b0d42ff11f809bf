"""An HTTP server that runs as a child process: starts it, waits until it answers, and ends it."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weftline_engine.api import EngineDied
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig, EndpointError

# Last lines of its standard error, to find the reason of a failed start. Each of vLLM's three
# processes prints a traceback, and the first has the reason.
KEPT_LINES = 400
MOST_CHARS = 300  # of a cause


class OutputLines:
    """Splits output into lines. A progress bar ends each of its states with a carriage return."""

    def __init__(self) -> None:
        self._rest = ""

    def split(self, text: str) -> list[str]:
        """The lines that `text` ends, without those that are empty."""
        *ended, self._rest = re.split(r"[\r\n]", self._rest + text)
        return [line.rstrip() for line in ended if line.strip()]


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """The program of a child: what users call it, the name of its socket, and two times.

    The child is asked every `poll_s` seconds whether it answers, for `ready_s` seconds.
    """

    name: str
    socket: str
    poll_s: float
    ready_s: float


class ChildServer(ABC):
    """One server on a unix socket that only this user can open."""

    def __init__(self, program: ChildProgram) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix=f"weftline-{program.name.lower()}-"))  # 0700
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader: asyncio.Task[None] | None = None
        self._loading = True

    @property
    def pid(self) -> int | None:
        """Process id of the guard (weftline_engine.remote.process_group), whose child the server
        is.
        """
        return None if self._process is None else self._process.pid

    @property
    def endpoint(self) -> EndpointConfig:
        """Where the server listens."""
        socket = str(self._folder / self._program.socket)
        return EndpointConfig(url=f"http://{self._program.name}", socket=socket)

    async def start(self) -> None:
        """Start the server and wait until it answers. Raises EngineDied with its last error."""
        try:
            command, environment = await self._prepared()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "weftline_engine.remote.process_group",
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                limit=1 << 20,
            )
            self._reader = asyncio.create_task(self._read(self._process))
            async with asyncio.timeout(self._program.ready_s):
                await self._wait_until_ready(self._process, self._reader)
            self._loading = False
        except TimeoutError:
            await self.close()
            raise EngineDied(
                f"the engine did not start: {self._program.name} did not answer within "
                f"{self._program.ready_s:g} s"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def wait(self) -> str:
        """Wait for the end of the process, and return a sentence about how it ended."""
        assert self._process is not None
        code = await self._process.wait()
        return f"{self._program.name} ended by itself (exit code {code})"

    async def close(self) -> None:
        """End the server with all its processes, and remove its socket and what it wrote."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
        if self._reader is not None:
            await self._reader
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _is_ended_by_us(self) -> bool:
        stdin = None if self._process is None else self._process.stdin
        return stdin is not None and stdin.is_closing()

    @abstractmethod
    async def _prepared(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and the environment. Raises EngineDied if the server cannot run."""

    @abstractmethod
    def _cause(self) -> str:
        """The error that ended the server, from its last lines."""

    def _hear(self, line: str) -> None:
        """Take a line of the server's standard error."""
        self._lines.append(line)

    async def _wait_until_ready(
        self, process: asyncio.subprocess.Process, reader: asyncio.Task[None]
    ) -> None:
        endpoint = Endpoint(self.endpoint)
        try:
            while process.returncode is None:
                try:
                    if (await endpoint.get("/health"))[0] == 200:
                        return
                except EndpointError:
                    pass  # it does not listen yet
                await asyncio.sleep(self._program.poll_s)
        finally:
            await endpoint.close()
        await reader
        raise EngineDied(
            f"the engine did not start: {self._program.name} ended while loading: {self._cause()}"
        )

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of its standard error."""
        assert process.stderr is not None
        lines = OutputLines()
        while data := await process.stderr.read(1 << 16):
            for line in lines.split(data.decode(errors="replace")):
                self._hear(line)
