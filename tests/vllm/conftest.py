"""Two real vLLMs for all tests of this folder, because each takes a minute to start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.oracle import greedy_answers
from tests.contract.target import Target
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine
from weftline_engine.remote.vllm.vllm_settings import SchedulerChoice

ROOT = Path(__file__).parents[2]
# GiB for the KV cache: about 23,000 tokens of SmolLM2 in float32, which no test fills.
KV_SPACE_GB = "1"
BLOCK = 32  # tokens
CONTEXT = 4096  # tokens of the longest conversation
FEW_BLOCKS = 128  # four contexts of the longest length


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has vLLM. `make test-vllm` installs it."""
    python = os.environ.get("WEFTLINE_VLLM_PYTHON", str(ROOT / ".venv-vllm/bin/python"))
    assert Path(python).exists(), f"{python} is missing: run `make test-vllm`"
    return python


@pytest.fixture(scope="session")
def plans(smollm2_directory: Path, vllm_python: str) -> dict[str, Any]:
    """What plans.py has printed: each of its stories by name."""
    path = os.pathsep.join((str(ROOT / "engine"), str(ROOT / "client"), str(ROOT)))
    done = subprocess.run(
        [vllm_python, str(Path(__file__).with_name("plans.py")), str(smollm2_directory)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="session")
def vllm_config(smollm2_directory: Path, vllm_python: str) -> VLLMConfig:
    return VLLMConfig(
        model=smollm2_directory,
        engine_python=vllm_python,
        name="smollm2",
        dtype="float32",  # so that two implementations agree on every token of these answers
        max_model_len=1024,
        max_running=16,
        vllm_scheduler=SchedulerChoice.VLLM,
        vllm_arguments=("--enforce-eager", "--block-size", str(BLOCK)),
    )


@pytest.fixture(scope="session")
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", KV_SPACE_GB)
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # test machines are shared
        yield


@pytest.fixture(scope="session")
def answers(smollm2_directory: Path) -> dict[str, list[str]]:
    return greedy_answers(smollm2_directory)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm(
    vllm_config: VLLMConfig, environment: None, answers: dict[str, list[str]]
) -> AsyncIterator[Target]:
    """The vllm engine with a child process that runs vLLM's own scheduler."""
    config = replace(vllm_config, max_model_len=CONTEXT)
    target = Target(VLLMEngine(config), answers, grain=BLOCK)
    async with asyncio.timeout(600):
        await target.start()
    yield target
    await target.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def scheduled(
    vllm_config: VLLMConfig, environment: None, answers: dict[str, list[str]]
) -> AsyncIterator[Target]:
    """The same with our scheduler, few KV blocks and few places."""
    few = ("--num-gpu-blocks-override", str(FEW_BLOCKS))
    config = replace(
        vllm_config,
        vllm_scheduler=SchedulerChoice.AUTO,
        max_running=4,
        vllm_arguments=(*vllm_config.vllm_arguments, *few),
    )
    target = Target(VLLMEngine(config), answers, grain=BLOCK)
    async with asyncio.timeout(600):
        await target.start()
    yield target
    await target.close()


@pytest.fixture(scope="session")
def vllm_socket(vllm: Target) -> str:
    """The unix socket of the child, to which other clients can connect."""
    engine = vllm.engine
    assert isinstance(engine, VLLMEngine) and engine.socket is not None
    return engine.socket
