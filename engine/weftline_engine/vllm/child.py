"""vLLM as a child process: started in its own interpreter, waited for, and ended with us."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections import deque
from pathlib import Path

from weftline_engine.api import EngineDied
from weftline_engine.openai.endpoint import Endpoint, EndpointConfig, EndpointError
from weftline_engine.vllm.config import VLLMConfig

POLL_S = 0.25
KEPT_LINES = 40  # of what it says, for the sentence that tells why it did not start


class Child:
    """One vLLM server behind a unix socket that only this user may open."""

    def __init__(self, config: VLLMConfig) -> None:
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="weftline-vllm-"))  # mode 0700
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The guard's process id; vLLM is its child."""
        return None if self._process is None else self._process.pid

    @property
    def endpoint(self) -> EndpointConfig:
        return EndpointConfig(url="http://vllm/v1", socket=str(self._folder / "http"))

    async def start(self) -> None:
        """Start it and wait until it answers. Raises EngineDied with its own last error."""
        guard = (sys.executable, "-m", "weftline_engine.vllm.guard")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *guard,
                *self._config.command(self._folder / "http"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(),
                limit=1 << 20,
            )
            self._reader = asyncio.create_task(self._read())
            async with asyncio.timeout(self._config.ready_s):
                await self._wait_until_ready()
        except TimeoutError:
            await self.close()
            message = f"vLLM did not answer within {self._config.ready_s:g} s"
            raise EngineDied(f"the engine did not start: {message}") from None
        except BaseException:
            await self.close()
            raise

    async def wait(self) -> str:
        """Its end, in words."""
        assert self._process is not None
        return f"vLLM ended by itself (exit code {await self._process.wait()})"

    async def close(self) -> None:
        """End it with all its processes, and remove its socket."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
        if self._reader is not None:
            await self._reader
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
                    pass  # it does not listen yet
                await asyncio.sleep(POLL_S)
        finally:
            await endpoint.close()
        raise EngineDied(f"the engine did not start: {await self._reason()}")

    async def _reason(self) -> str:
        """The last line of a Python error among what it said."""
        assert self._reader is not None
        await self._reader
        errors = [line for line in self._said if "Error" in line]
        last = errors[-1] if errors else (self._said[-1] if self._said else "it said nothing")
        return f"vLLM ended while loading: {last[-300:]}"

    async def _read(self) -> None:
        """Pass on to our standard error what it says, and keep the last lines."""
        assert self._process is not None and self._process.stderr is not None
        while line := await self._process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            self._said.append(text)
            if " ERROR " in text or "Error" in text:
                print(f"vllm: {text}", file=sys.stderr)

    @staticmethod
    def _environment() -> dict[str, str]:
        """Ours without what would lead another interpreter to our packages."""
        without = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "WEFTLINE_API_KEY")
        found = {key: value for key, value in os.environ.items() if key not in without}
        # The guard is ours and finds our packages by where this file lies.
        return {**found, "PYTHONSAFEPATH": "1", "VLLM_NO_USAGE_STATS": "1"}
