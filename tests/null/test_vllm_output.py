"""What a vLLM child prints: its progress, its errors, and the cause of a failed start."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline_engine.remote.openai.child import OutputLines
from weftline_engine.remote.vllm.child_output import cause, passed_on
from weftline_engine.remote.vllm.processor import openmp, settings

GIB = 1 << 30
WORKER = "(Worker pid=27) ERROR 11-23 12:07:29 [multiproc_executor.py:1063] "
CORE = "(EngineCore pid=33) ERROR 11-23 12:07:29 [core.py:1510] "
FAILED = [
    "(APIServer pid=21) INFO 11-23 12:05:47 [model.py:2152] Using max model len 8192",
    f"{WORKER}WorkerProc hit an exception.",
    f"{WORKER}Traceback (most recent call last):",
    f'{WORKER}  File "cpu_worker.py", line 219, in determine_available_memory',
    f"{WORKER}    raise ValueError(",
    f"{WORKER}ValueError: Available memory on node 0 is less than requested.",
    f"{CORE}RuntimeError: Worker failed with error 'Available memory', see the root cause",
    "(EngineCore pid=33) Traceback (most recent call last):",
    "RuntimeError: Worker failed with error 'Available memory', see the root cause",
    "Traceback (most recent call last):",
    "RuntimeError: Engine core initialization failed. See root cause above.",
]


def test_the_cause_is_the_first_hand_error() -> None:
    """Not the errors with which its other processes end."""
    assert cause(FAILED) == "ValueError: Available memory on node 0 is less than requested."


def test_other_causes() -> None:
    """A setting that pydantic refuses, a program that says no error, and silence."""
    refused = [
        "Traceback (most recent call last):",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, No model is in /nowhere",
        "    For further information visit https://errors.pydantic.dev",
    ]
    assert cause(refused) == (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: "
        "Value error, No model is in /nowhere "
        "For further information visit https://errors.pydantic.dev"
    )
    assert cause(FAILED[-1:]) == FAILED[-1]
    assert cause(["api_server.py: error: unrecognized arguments: --x"]).endswith("arguments: --x")
    assert cause([]) == "it printed nothing"


@pytest.mark.parametrize(
    ("line", "loading", "later"),
    [
        (FAILED[0], "vllm: Using max model len 8192", None),
        (FAILED[1], "vllm: WorkerProc hit an exception.", "vllm: WorkerProc hit an exception."),
        (FAILED[3], None, 'vllm:   File "cpu_worker.py", line 219, in determine_available_memory'),
        ("(Worker pid=27) shards:  50%|█████     | 1/2 [00:01<00:01]", "vllm: shards:  50%|█████"
         "     | 1/2 [00:01<00:01]", None),
        ("(APIServer pid=21) INFO 11-23 12:05:47 [api_utils.py:347]   █▄█▀ █     model x", None,
         None),
        ("  warnings.warn(", None, None),
    ],
)  # fmt: skip
def test_a_terminal_sees_how_it_loads(line: str, loading: str | None, later: str | None) -> None:
    """Its log and its progress bars while it loads, then its errors only."""
    assert passed_on(line, loading=True) == loading
    assert passed_on(line, loading=False) == later


def test_a_progress_bar_is_lines() -> None:
    """Each state of a bar ends with a carriage return; a line may come in parts."""
    lines = OutputLines()
    assert lines.split("a\r\nbar:  0%|\rbar: 50%|\rba") == ["a", "bar:  0%|", "bar: 50%|"]
    assert lines.split("r: 100%|\n\n") == ["bar: 100%|"]


def test_what_a_cpu_gets() -> None:
    """A quarter of the memory, and all of few cores. What is given stays."""
    space, reserved = "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_NUM_OF_RESERVED_CPU"
    assert settings(2, 22 * GIB, {}, ()) == {space: "5", reserved: "0"}
    assert settings(64, 2 * GIB, {}, ()) == {space: "1"}
    assert settings(64, None, {}, ()) == {}
    assert settings(2, 22 * GIB, {space: "9", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}, ()) == {}
    assert settings(64, 22 * GIB, {}, ("--gpu-memory-utilization=0.5",)) == {}
    assert settings(64, 22 * GIB, {}, ("--kv-cache-memory-bytes", "1")) == {}


def test_the_openmp_beside_vllm_is_loaded(tmp_path: Path) -> None:
    """Where it came with vLLM, and nothing else is loaded already."""
    python = tmp_path / "bin" / "python"
    assert openmp(str(python), {}) == {}
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libiomp5.so"
    library.touch()
    assert openmp(str(python), {}) == {"LD_PRELOAD": str(library)}
    assert openmp(str(python), {"LD_PRELOAD": "mine.so"}) == {}
