"""Starts the servers under test, and stops all of their processes."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.instructions import HELD_TO_AVX2, held, held_python
from bench.harness.texts import ROOT
from tests.ports import free_port
from weftline.errors import EngineUnavailable, InvalidRequest

READY_S = 400.0  # vLLM compiles its model at its first start
STOP_S = 15.0
VLLM_PYTHON = Path(os.environ.get("WEFTLINE_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
VLLM_BLOCK = 128  # tokens of a KV block of vLLM on CPUs
PR_SET_PDEATHSIG = 1
_NOT_FOR_VLLM = {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}


class Kind(StrEnum):
    """The program that serves."""

    VLLM = "vllm"
    WEFTLINE = "weftline"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server with `arguments` of its own; systems with equal specs share one process.

    `engine` is another server, which a weftline uses instead of an engine of its own. With
    `starts_vllm` it starts a vLLM itself, with its scheduler inside.
    """

    kind: Kind
    arguments: tuple[str, ...] = ()
    engine: ServerSpec | None = None
    starts_vllm: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that all servers of a benchmark share.

    With `model` None they run the null engine. All have a KV cache of `kv_tokens`; by default each
    would take a share of the free memory. vLLM runs in `vllm_dtype`, or in weftline's `dtype` if
    that is None. The servers run on `cores`, or on those of the harness if that is empty.
    """

    model: Path | None
    dtype: str = "bfloat16"
    vllm_dtype: str | None = None
    kv_tokens: int = 65_536  # the embedded engine's own default
    random_weights: bool = False  # the model has only a config.json and a tokenizer
    vllm_arguments: tuple[str, ...] = ()  # added to every vLLM's command line
    cores: tuple[int, ...] = ()
    logs: Path = Path("out/bench-logs")


# vLLM refuses requests with tools without them. Answers without tools are the same with them.
TOOL_CALLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@dataclass(slots=True)
class Server:
    """A running server: its address, its process and its command line."""

    url: str
    process: subprocess.Popen[bytes]
    command: tuple[str, ...]

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes until now."""
        return session_cpu_seconds(self.process.pid)

    def cores(self) -> list[int]:
        """The cores that any of its threads may run on now, according to the kernel."""
        return session_cores(self.process.pid)


def command(
    spec: ServerSpec, setup: Setup, port: int, engine_url: str | None = None
) -> tuple[str, ...]:
    """The command line of `spec`. Raises InvalidRequest if it needs a vLLM or a model that is not
    there."""
    if spec.kind is Kind.WEFTLINE:
        weftline = (sys.executable, "-m", "weftline_server", "serve", "--port", str(port))
        if spec.starts_vllm:
            return (*weftline, *_starting_vllm(setup), *spec.arguments)
        if engine_url is None:
            return (*weftline, *_engine(setup), *spec.arguments)
        engine = ("--engine", "vllm", "--connect", engine_url)
        return (*weftline, str(_model_for_vllm(setup)), *engine, *spec.arguments)
    model = _model_for_vllm(setup)
    return (
        str(VLLM_PYTHON),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--port",
        str(port),
        "--model",
        str(model),
        "--served-model-name",
        "default",
        "--dtype",
        setup.vllm_dtype or setup.dtype,
        "--enable-prompt-tokens-details",  # for the share of the prompts that was in the cache
        "--enable-per-request-metrics",  # with it weftline asks for short answers in one piece
        *TOOL_CALLS,
        *_load_format(setup),
        *_pool(model, setup),
        *setup.vllm_arguments,
        *spec.arguments,
    )


def _starting_vllm(setup: Setup) -> tuple[str, ...]:
    """The arguments of a weftline that starts vLLM as the baseline's is started."""
    model = _model_for_vllm(setup)
    return (
        str(model),
        "--engine",
        "vllm",
        "--engine-python",
        str(held_python(VLLM_PYTHON) if held(os.environ) else VLLM_PYTHON),
        "--dtype",
        setup.vllm_dtype or setup.dtype,
        *_load_format(setup),
        "--vllm-scheduler",
        "weftline",
        "--vllm-arguments=" + shlex.join((*_pool(model, setup), *setup.vllm_arguments)),
    )


def _model_for_vllm(setup: Setup) -> Path:
    """The model. Raises InvalidRequest if there is none, or no vLLM."""
    if not VLLM_PYTHON.exists():
        raise InvalidRequest(
            "vLLM is not installed for the benchmark: run `make install-bench`, "
            "or leave it out with --systems"
        )
    if setup.model is None:
        raise InvalidRequest("vLLM has no engine without a model: leave out --null, or vLLM")
    return setup.model


def _pool(model: Path, setup: Setup) -> tuple[str, ...]:
    """The words that give vLLM its pool. It only checks the utilization at its start."""
    size = setup.kv_tokens * kv_bytes_per_token(model, setup.vllm_dtype or setup.dtype)
    given = ("--kv-cache-memory-bytes", str(size), "--gpu-memory-utilization", "0.3")
    return (*given, *_longest(model, setup.kv_tokens))


def _load_format(setup: Setup) -> tuple[str, ...]:
    """The words that make a server fill its weights with random numbers; both servers have them."""
    return ("--load-format", "dummy") if setup.random_weights else ()


def _longest(model: Path, kv_tokens: int) -> tuple[str, ...]:
    """Shorten the context to the pool: vLLM does not start with a pool that is smaller than it."""
    fits = (kv_tokens // VLLM_BLOCK - 1) * VLLM_BLOCK  # vLLM keeps one block back
    config = json.loads((model / "config.json").read_text())
    return ("--max-model-len", str(fits)) if fits < config["max_position_embeddings"] else ()


def _engine(setup: Setup) -> tuple[str, ...]:
    if setup.model is None:
        return ("--engine", "null", "--null-mode", "fixed", "--null-step-s", "0.0005")
    pool = ("--kv-tokens", str(setup.kv_tokens))
    # Answers of random weights repeat themselves, so drafts would be right too often.
    drafts = ("--without", "drafting") if setup.random_weights else ()
    return (str(setup.model), "--dtype", setup.dtype, *_load_format(setup), *drafts, *pool)


def kv_bytes_per_token(model: Path, dtype: str) -> int:
    """Bytes of the keys and values of a token in all layers, by the model's config.json."""
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * int(config["num_hidden_layers"] * heads * size) * (4 if dtype == "float32" else 2)


async def phases(server: Server) -> dict[str, float]:
    """Seconds that all calls of a weftline have spent in each phase until now; empty for vLLM."""
    if "weftline_server" not in server.command:
        return {}
    async with httpx2.AsyncClient(base_url=server.url) as client:
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
    """Run the server of `spec` on a free port until the block ends, also by Ctrl-C.

    Raises EngineUnavailable with the server's last error if it does not come up.
    """
    port = free_port()
    words = command(spec, setup, port, engine_url)
    log = setup.logs / f"{name}.txt"
    process = launched(words, environment(spec, os.environ), log, setup.cores)
    server = Server(f"http://127.0.0.1:{port}", process, words)
    try:
        await _wait_until_ready(server, name, log)
        yield server
    finally:
        stop(server.process)


def launched(
    words: Sequence[str], environment: Mapping[str, str], log: Path, cores: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A server in a session of its own, whose output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the server
            preexec_fn=partial(_prepare, cores),
        )


def environment(spec: ServerSpec, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process; for vLLM without our packages, and set as its docs advise.

    By default vLLM keeps one core free: on two cores that would halve it. What asks for AVX2 holds
    the libraries of both to it.
    """
    libraries = HELD_TO_AVX2 if held(own) else {}
    if spec.kind is not Kind.VLLM:
        own = {**own, **{n: value for n, value in libraries.items() if n != "PYTHONPATH"}}
        if spec.starts_vllm:  # it is vLLM's environment, too
            for name in _NOT_FOR_VLLM - {"PYTHONPATH"}:
                own.pop(name, None)
            own.setdefault("VLLM_USE_AOT_COMPILE", "0")
        return own
    found = {name: value for name, value in own.items() if name not in _NOT_FOR_VLLM}
    found |= libraries
    found["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    # vLLM 0.32 cannot read back its ahead-of-time compilation on a CPU: each start took 85 s more.
    found.setdefault("VLLM_USE_AOT_COMPILE", "0")
    openmp = VLLM_PYTHON.parents[1] / "lib" / "libiomp5.so"
    if openmp.exists():
        found["LD_PRELOAD"] = str(openmp)
    return found


def _prepare(cores: Sequence[int]) -> None:
    """Prepare the child process: pin it to its cores, and have the kernel send it SIGTERM when the
    harness dies, even by SIGKILL."""
    if cores:
        os.sched_setaffinity(0, cores)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


async def _wait_until_ready(server: Server, name: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    health = "/health/ready" if "weftline_server" in server.command else "/health"
    async with httpx2.AsyncClient(base_url=server.url, timeout=2) as client:
        while time.monotonic() < deadline:
            if (code := server.process.poll()) is not None:
                raise EngineUnavailable(f"{name} ended with exit code {code}: {last_words(log)}")
            with suppress(httpx2.TransportError):
                if (await client.get(health)).is_success:
                    return
            await asyncio.sleep(0.2)
    raise EngineUnavailable(f"{name} was not ready after {READY_S:g} s: see {log}")


def last_words(log: Path) -> str:
    """The last line of a log that reports an error, or else its last line, and the log's path."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error:" in line or line.startswith("weftline:")]
    return f"{errors[-1] if errors else (lines or ['it said nothing'])[-1]} (all of it: {log})"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the server, and after 15 s SIGKILL to all that is left of its session."""
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
    """The process ids of a session."""
    return [pid for pid, fields in _processes() if int(fields[3]) == session]


def session_cores(session: int) -> list[int]:
    """The cores that the threads of a session's processes may use, taken together."""
    found: set[int] = set()
    for pid in session_members(session):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # the thread has just ended
                found |= os.sched_getaffinity(int(task.name))
    return sorted(found)


def family(session: int) -> dict[int, list[str]]:
    """The living processes of a session with the fields of their stat, by id.

    Sessions that its processes have begun count, too: a vLLM that a weftline starts is one.
    """
    processes = dict(_processes())
    counted = {pid for pid, fields in processes.items() if int(fields[3]) == session}
    while more := {p for p, one in processes.items() if int(one[1]) in counted} - counted:
        counted |= more
    return {pid: processes[pid] for pid in counted}


def session_cpu_seconds(session: int) -> float:
    """User and system time of a session's living processes, and of those they waited for."""
    ticks = sum(sum(map(int, fields[11:15])) for fields in family(session).values())
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Each process with the fields of its stat after the name: state, parent, group, session, …"""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # the process has just ended
        yield int(path.parent.name), text.rsplit(")", 1)[1].split()
