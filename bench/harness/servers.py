"""Starts the servers under test, and stops every process of theirs."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.texts import ROOT
from weftline.errors import EngineUnavailable, InvalidRequest

READY_S = 400.0  # vLLM compiles its model at its first start
STOP_S = 15.0
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
VLLM_BLOCK = 128  # tokens of a block of its KV cache, on CPUs
PR_SET_PDEATHSIG = 1
_NOT_FOR_VLLM = {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}


class Kind(StrEnum):
    """Whose server it is."""

    VLLM = "vllm"
    WEFTLINE = "weftline"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What runs, with `arguments` beside those that all have; equal ones share a process.

    `engine` is a server that a weftline uses as its engine, instead of one of its own.
    """

    kind: Kind
    arguments: tuple[str, ...] = ()
    engine: ServerSpec | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers of a benchmark have in common. `model` None is the null engine. All have a
    KV cache of `kv_tokens`: left alone, each would take what it finds of the memory. vLLM runs in
    `vllm_dtype`, whichever it is faster in; None: the same as weftline. `cores` are those that the
    servers may use; none given are those of the harness.
    """

    model: Path | None
    dtype: str = "bfloat16"
    vllm_dtype: str | None = None
    kv_tokens: int = 65_536  # the embedded engine's own default
    cores: tuple[int, ...] = ()
    logs: Path = Path("out/bench-logs")


@dataclass(slots=True)
class Server:
    """A running one: its address, its process and what it was started with."""

    url: str
    process: subprocess.Popen[bytes]
    command: tuple[str, ...]

    def cpu_seconds(self) -> float:
        """Of all its processes until now."""
        return session_cpu_seconds(self.process.pid)

    def cores(self) -> list[int]:
        """Those that any thread of it may run on, as the kernel says now."""
        return session_cores(self.process.pid)


def command(
    spec: ServerSpec, setup: Setup, port: int, engine_url: str | None = None
) -> tuple[str, ...]:
    """The command line of `spec`. Raises InvalidRequest where vLLM is not installed."""
    if spec.kind is Kind.WEFTLINE:
        weftline = (sys.executable, "-m", "weftline_server", "serve", "--port", str(port))
        engine = ("--engine", "vllm", "--connect", engine_url) if engine_url else _engine(setup)
        return (*weftline, *engine, *spec.arguments)
    if not VLLM_PYTHON.exists():
        raise InvalidRequest(
            "vLLM is not installed for the benchmark: run `make install-bench`, "
            "or leave it out with --systems"
        )
    if setup.model is None:
        raise InvalidRequest("vLLM has no engine without a model: leave out --null, or vLLM")
    dtype = setup.vllm_dtype or setup.dtype
    pool = str(setup.kv_tokens * kv_bytes_per_token(setup.model, dtype))
    return (
        *(str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)),
        *("--model", str(setup.model), "--served-model-name", "default", "--dtype", dtype),
        # The second is only checked at the start: the size of the pool is given.
        *("--kv-cache-memory-bytes", pool, "--gpu-memory-utilization", "0.3"),
        *(*_longest(setup.model, setup.kv_tokens), *spec.arguments),
    )


def _longest(model: Path, kv_tokens: int) -> tuple[str, ...]:
    """vLLM does not start with a pool that the model's longest context would not fit into."""
    fits = (kv_tokens // VLLM_BLOCK - 1) * VLLM_BLOCK  # one block is never given away
    config = json.loads((model / "config.json").read_text())
    return ("--max-model-len", str(fits)) if fits < config["max_position_embeddings"] else ()


def _engine(setup: Setup) -> tuple[str, ...]:
    if setup.model is None:
        return ("--engine", "null", "--null-mode", "fixed", "--null-step-s", "0.0005")
    pool = ("--kv-tokens", str(setup.kv_tokens))
    return (str(setup.model), "--dtype", setup.dtype, *pool)


def kv_bytes_per_token(model: Path, dtype: str) -> int:
    """Of keys and values in all layers, by the model's config.json."""
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * int(config["num_hidden_layers"] * heads * size) * (4 if dtype == "float32" else 2)


async def phases(server: Server) -> dict[str, float]:
    """Seconds that all calls of a weftline have spent in each phase until now; of any other server
    nothing is known."""
    if "weftline_server" not in server.command:
        return {}
    async with httpx.AsyncClient(base_url=server.url) as client:
        text = (await client.get("/metrics")).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name == "weftline_phase_seconds" else ():
            if sample.name.endswith("_sum"):
                phase = sample.labels["phase"]
                found[phase] = found.get(phase, 0.0) + sample.value
    return found


@asynccontextmanager
async def running(
    spec: ServerSpec, setup: Setup, name: str, engine_url: str | None = None
) -> AsyncIterator[Server]:
    """The server of `spec` on a free port until the block ends, also by Ctrl-C.

    Raises EngineUnavailable with its last words if it does not come up.
    """
    port = free_port()
    words = command(spec, setup, port, engine_url)
    log = setup.logs / f"{name}.txt"
    process = _start(spec, words, log, setup.cores)
    server = Server(f"http://127.0.0.1:{port}", process, words)
    try:
        await _wait_until_ready(server, name, log)
        yield server
    finally:
        stop(server.process)


def _start(
    spec: ServerSpec, words: Sequence[str], log: Path, cores: Sequence[int]
) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(spec, os.environ),
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops the server
            preexec_fn=partial(_prepare, cores),
        )


def environment(spec: ServerSpec, own: Mapping[str, str]) -> dict[str, str]:
    """This process's; for vLLM without our packages, and with what its documents advise.

    Left alone it keeps one core free, which on two cores would be half of what we use.
    """
    if spec.kind is not Kind.VLLM:
        return dict(own)
    found = {name: value for name, value in own.items() if name not in _NOT_FOR_VLLM}
    found["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    # What 0.32 compiles ahead it cannot read back on a CPU, so every start would take 85 s more.
    found.setdefault("VLLM_USE_AOT_COMPILE", "0")
    openmp = VLLM_PYTHON.parents[1] / "lib" / "libiomp5.so"
    if openmp.exists():
        found["LD_PRELOAD"] = str(openmp)
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _prepare(cores: Sequence[int]) -> None:
    """In the child, before it becomes the server: its cores; and even where the harness is killed
    outright, the kernel sends its servers SIGTERM."""
    if cores:
        os.sched_setaffinity(0, cores)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


async def _wait_until_ready(server: Server, name: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    health = "/health/ready" if "weftline_server" in server.command else "/health"
    async with httpx.AsyncClient(base_url=server.url, timeout=2) as client:
        while time.monotonic() < deadline:
            if (code := server.process.poll()) is not None:
                raise EngineUnavailable(f"{name} ended with exit code {code}: {last_words(log)}")
            with suppress(httpx.TransportError):
                if (await client.get(health)).is_success:
                    return
            await asyncio.sleep(0.2)
    raise EngineUnavailable(f"{name} was not ready after {READY_S:g} s: see {log}")


def last_words(log: Path) -> str:
    """The last line of a log that says what went wrong, else where the log is."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error:" in line or line.startswith("weftline:")]
    return f"{errors[-1] if errors else (lines or ['it said nothing'])[-1]} (all of it: {log})"


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server, and after a while SIGKILL to all that is left of its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    finally:
        for pid in session_members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def session_members(session: int) -> list[int]:
    """Every process of a session."""
    return [pid for pid, fields in _processes() if int(fields[3]) == session]


def session_cores(session: int) -> list[int]:
    """The cores that the threads of a session's processes may use, taken together."""
    found: set[int] = set()
    for pid in session_members(session):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # it has just ended
                found |= os.sched_getaffinity(int(task.name))
    return sorted(found)


def session_cpu_seconds(session: int) -> float:
    """User and system time of a session's living processes, and of those they waited for."""
    ticks = sum(
        sum(map(int, fields[11:15])) for _, fields in _processes() if int(fields[3]) == session
    )
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Each process with the fields of its stat after the name: state, parent, group, session, …"""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has just ended
        yield int(path.parent.name), text.rsplit(")", 1)[1].split()
