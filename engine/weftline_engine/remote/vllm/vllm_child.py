"""vLLM as a child process in its own interpreter: its version, its environment, its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import weftline_engine
from weftline.contract import vectors
from weftline_engine.api import EngineDied
from weftline_engine.own.free_memory import available_bytes
from weftline_engine.remote.openai.child import ChildProgram, ChildServer
from weftline_engine.remote.prefix_cache.event_feed import EventAddresses
from weftline_engine.remote.vllm.child_output import cause, passed_on
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.host_memory import usual_gib
from weftline_engine.remote.vllm.notes import HintSocket
from weftline_engine.remote.vllm.processor import openmp, settings
from weftline_engine.remote.vllm.versions import NOTES, is_for_cpus, is_known, package_of, refusal
from weftline_engine.remote.vllm.vllm_settings import SchedulerChoice

POLL_S = 0.25


class Child(ChildServer):
    """One vLLM server."""

    def __init__(self, config: VLLMConfig) -> None:
        super().__init__(ChildProgram("vLLM", "http", POLL_S, config.ready_s))
        self._config = config
        self.host_gib = 0.0  # of host memory for copies, known when it has started
        self.notes = HintSocket()  # the socket to our scheduler, if the child runs it

    @property
    def events(self) -> EventAddresses | None:
        """Where vLLM publishes its KV events, if not where its arguments say."""
        return self._config.events_in(self._folder)

    async def close(self) -> None:
        await super().close()
        await self.notes.close()

    async def _prepared(self) -> tuple[Sequence[str], Mapping[str, str]]:
        name, version = await self._package()
        ours, on_cpu = self._runs_our_scheduler(version), is_for_cpus(name, version)
        if on_cpu and self._config.host_kv_gib:
            raise EngineDied(
                "the engine did not start: vLLM for CPUs copies no KV cache to host memory: "
                "leave --host-kv-gib out"
            )
        if ours:
            await self.notes.listen(self._folder / "notes")
        self.host_gib = self._host_gib(version, on_cpu, ours)
        command = self._config.command(
            self._folder, ours=ours, on_cpu=on_cpu, host_gib=self.host_gib
        )
        return command, self._environment(ours, on_cpu)

    def _host_gib(self, version: str, on_cpu: bool, ours: bool) -> float:
        """The GiB of host memory that vLLM copies contexts to, which are said at the start. By
        default a version that was not checked copies none. Its arguments may name a connector of
        the operator's."""
        given, words = self._config.host_kv_gib, self._config.vllm_arguments
        if on_cpu or any(one.startswith("--kv-transfer-config") for one in words):
            return 0.0
        usual = usual_gib(available_bytes()) if is_known(version) else 0
        found = usual if given is None else given
        if found:
            first = "what is read last" if ours else "what was used least recently"
            print(
                f"vLLM copies contexts into {found:g} GiB of host memory, which drops {first} "
                "first (--host-kv-gib 0 switches that off)",
                file=sys.stderr,
            )
        return found

    def _cause(self) -> str:
        return cause(self._lines)

    def _hear(self, line: str) -> None:
        """Copy errors to our standard error, and on a terminal also the other lines while it
        loads. When we end it, vLLM's processes miss each other, which is no error."""
        super()._hear(line)
        if self._is_ended_by_us:
            return
        words = passed_on(line, loading=self._loading and sys.stderr.isatty())
        if words is not None:
            print(words, file=sys.stderr)

    async def _package(self) -> tuple[str, str]:
        """The name and the version of vLLM's package. Raises EngineDied."""
        assert self._config.engine_python is not None
        try:
            return await package_of(self._config.engine_python)
        except OSError as error:
            raise EngineDied(f"the engine did not start: {error}") from error

    def _runs_our_scheduler(self, version: str) -> bool:
        """Whether the child will run our scheduler. Raises EngineDied if it must and cannot."""
        choice = self._config.vllm_scheduler
        if choice is SchedulerChoice.WEFTLINE and not is_known(version):
            raise EngineDied(f"the engine did not start: {refusal(version)}")
        return choice is not SchedulerChoice.VLLM and is_known(version)

    def _environment(self, ours: bool, on_cpu: bool) -> dict[str, str]:
        """Our environment without our key and without paths that lead to our packages.

        With `ours` there is one path, to a folder that has only the two packages that our scheduler
        imports. `on_cpu` adds settings for the machine's cores and memory.
        """
        without = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "WEFTLINE_API_KEY")
        found = {key: value for key, value in os.environ.items() if key not in without}
        found |= {"PYTHONSAFEPATH": "1", "VLLM_NO_USAGE_STATS": "1"}
        if on_cpu:
            cores = len(os.sched_getaffinity(0))
            found |= settings(cores, available_bytes(), found, self._config.vllm_arguments)
            found |= openmp(self._config.engine_python or "", found)
        if ours:
            site = self._folder / "site"
            site.mkdir()
            # That of the client has the type of vectors, which frames carry.
            for package in (Path(vectors.__file__).parents[1], Path(weftline_engine.__path__[0])):
                (site / package.name).symlink_to(package)
            found |= {"PYTHONPATH": str(site), NOTES: str(self._folder / "notes")}
        return found
