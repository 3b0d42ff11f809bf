"""Starts vLLM as a child process in its own interpreter, waits for it, and ends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections import deque
from pathlib import Path

import weftline_engine
from weftline_engine.api import EngineDied
from weftline_engine.memory import available_bytes
from weftline_engine.openai.endpoint import Endpoint, EndpointConfig, EndpointError
from weftline_engine.vllm.config import SchedulerChoice, VLLMConfig
from weftline_engine.vllm.notes import HintSocket
from weftline_engine.vllm.output import OutputLines, cause, passed_on
from weftline_engine.vllm.processor import openmp, settings
from weftline_engine.vllm.versions import NOTES, is_for_cpus, is_known, package_of, refusal

POLL_S = 0.25  # seconds between two checks whether vLLM answers
# Last lines of its standard error, to find the reason of a failed start. Three processes print a
# traceback each; the first has the reason.
KEPT_LINES = 400


class Child:
    """One vLLM server on a unix socket that only this user can open."""

    def __init__(self, config: VLLMConfig) -> None:
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="weftline-vllm-"))  # mode 0700
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader: asyncio.Task[None] | None = None
        self._loading = True
        self.notes = HintSocket()  # the socket to our scheduler, if the child runs it

    @property
    def pid(self) -> int | None:
        """Process id of the guard (weftline_engine.vllm.guard), whose child vLLM is."""
        return None if self._process is None else self._process.pid

    @property
    def endpoint(self) -> EndpointConfig:
        """Where vLLM listens."""
        return EndpointConfig(url="http://vllm/v1", socket=str(self._folder / "http"))

    async def start(self) -> None:
        """Start vLLM and wait until it answers. Raises EngineDied with vLLM's last error."""
        guard = (sys.executable, "-m", "weftline_engine.vllm.guard")
        try:
            name, version = await self._package()
            ours, on_cpu = self._runs_our_scheduler(version), is_for_cpus(name, version)
            if ours:
                await self.notes.listen(self._folder / "notes")
            self._process = await asyncio.create_subprocess_exec(
                *guard,
                *self._config.command(self._folder / "http", ours=ours, on_cpu=on_cpu),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(ours, on_cpu),
                limit=1 << 20,
            )
            self._reader = asyncio.create_task(self._read())
            async with asyncio.timeout(self._config.ready_s):
                await self._wait_until_ready()
            self._loading = False
        except TimeoutError:
            await self.close()
            message = f"vLLM did not answer within {self._config.ready_s:g} s"
            raise EngineDied(f"the engine did not start: {message}") from None
        except BaseException:
            await self.close()
            raise

    async def wait(self) -> str:
        """Wait for the end of the process, and return a sentence about how it ended."""
        assert self._process is not None
        return f"vLLM ended by itself (exit code {await self._process.wait()})"

    async def close(self) -> None:
        """End vLLM with all its processes, and remove its socket."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
        if self._reader is not None:
            await self._reader
        await self.notes.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _wait_until_ready(self) -> None:
        assert self._process is not None
        endpoint = Endpoint(EndpointConfig(url="http://vllm", socket=self.endpoint.socket))
        try:
            while self._process.returncode is None:
                try:
                    if (await endpoint.get("/health"))[0] == 200:
                        return
                except EndpointError:
                    pass  # vLLM does not listen yet
                await asyncio.sleep(POLL_S)
        finally:
            await endpoint.close()
        raise EngineDied(f"the engine did not start: {await self._reason()}")

    async def _reason(self) -> str:
        assert self._reader is not None
        await self._reader
        return f"vLLM ended while loading: {cause(self._lines)}"

    async def _read(self) -> None:
        """Keep the last lines of its standard error. Copy errors to ours, and on a terminal also
        the other lines while it loads."""
        assert self._process is not None and self._process.stderr is not None
        lines = OutputLines()
        while data := await self._process.stderr.read(1 << 16):
            for line in lines.split(data.decode(errors="replace")):
                self._lines.append(line)
                loading = self._loading and sys.stderr.isatty()
                if (words := passed_on(line, loading=loading)) is not None:
                    print(words, file=sys.stderr)

    async def _package(self) -> tuple[str, str]:
        """The name and the version of vLLM's package. Raises EngineDied."""
        assert self._config.python is not None
        try:
            return await package_of(self._config.python)
        except OSError as error:
            raise EngineDied(f"the engine did not start: {error}") from error

    def _runs_our_scheduler(self, version: str) -> bool:
        """Whether the child will run our scheduler. Raises EngineDied if it must and cannot."""
        choice = self._config.scheduler
        if choice is SchedulerChoice.WEFTLINE and not is_known(version):
            raise EngineDied(f"the engine did not start: {refusal(version)}")
        return choice is not SchedulerChoice.VLLM and is_known(version)

    def _environment(self, ours: bool, on_cpu: bool) -> dict[str, str]:
        """Our environment without our key and without paths that lead to our packages.

        With `ours` there is one path, to a folder that has only this package. `on_cpu` adds
        settings for the machine's cores and memory.
        """
        without = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "WEFTLINE_API_KEY")
        found = {key: value for key, value in os.environ.items() if key not in without}
        found |= {"PYTHONSAFEPATH": "1", "VLLM_NO_USAGE_STATS": "1"}
        if on_cpu:
            cores = len(os.sched_getaffinity(0))
            found |= settings(cores, available_bytes(), found, self._config.arguments)
            found |= openmp(self._config.python or "", found)
        if ours:
            site = self._folder / "site"
            site.mkdir()
            (site / "weftline_engine").symlink_to(weftline_engine.__path__[0])
            found |= {"PYTHONPATH": str(site), NOTES: str(self._folder / "notes")}
        return found
