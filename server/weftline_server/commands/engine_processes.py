"""The engines that all servers of one parent share: each is a process of `weftline join`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from weftline_engine.transport.tcp.join_host import DRAIN_S
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.engines import by_name
from weftline_server.commands.server_process import LAST_S, Address, authority, pause_s

log = logging.getLogger("weftline.supervisor")


class EngineProcesses:
    """Starts the engines, and starts one again that has ended. They join the servers at `gates`."""

    def __init__(
        self, specs: Sequence[EngineSpec], gates: Sequence[Address], more: Mapping[str, str]
    ) -> None:
        """`more` are further environment variables."""
        self._more = more
        self._specs = by_name(specs)
        self._gates = ",".join(authority(*gate) for gate in gates)
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._ready = False

    async def keep(self) -> None:
        """Keep them until cancelled. Return when one has ended before `are_ready`: it cannot
        start, and has said why.
        """
        if not self._specs:
            await asyncio.Event().wait()
        tasks = [asyncio.create_task(self._keep(name)) for name in self._specs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def are_ready(self) -> None:
        """Servers have them, so from now on one that ends is started again."""
        self._ready = True

    async def end(self) -> None:
        """Let them finish their calls, and kill those that do not end, or that no server has."""
        await asyncio.gather(*(self._end(one) for one in self._running.values()))

    async def _keep(self, name: str) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._running[name] = process = await self._started(name)
            code = await process.wait()
            if not self._ready:
                return
            failures = failures + 1 if loop.time() < began + DRAIN_S else 1
            log.error("engine %s ended with code %s, and is started again", name, code)
            await asyncio.sleep(pause_s(failures))

    async def _started(self, name: str) -> asyncio.subprocess.Process:
        spec = json.dumps(self._specs[name].settings())
        words = [sys.executable, "-m", "weftline_server", "join", self._gates, "--name", name]
        words += ["--spec", spec, "--until-stdin-closes"]
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=subprocess.PIPE,
            env={**os.environ, **self._more},
            start_new_session=True,  # the terminal's signals come to the parent alone
        )

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate() if self._ready else process.kill()
        try:
            async with asyncio.timeout(DRAIN_S + LAST_S):
                await process.wait()
        except TimeoutError:
            log.error("an engine did not end in time, and is killed")
            process.kill()
            await process.wait()
