"""What a vLLM child prints: its progress, its errors, and the cause of a failed start."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline_engine.openai.child import OutputLines
from weftline_engine.vllm.output import cause, passed_on
from weftline_engine.vllm.processor import has_one_process, openmp, settings, threads

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


@pytest.mark.parametrize(
    ("cores", "workers", "given", "arguments", "one"),
    [
        (2, 1, (), (), True),
        (4, 1, ("LD_PRELOAD",), ("--block-size", "64"), True),
        (5, 1, (), (), False),
        (2, 2, (), (), False),
        (2, 1, ("VLLM_CPU_OMP_THREADS_BIND",), (), False),
        (2, 1, ("OMP_NUM_THREADS",), (), False),
        (2, 1, (), ("--distributed-executor-backend", "mp"), False),
        (2, 1, (), ("--tensor-parallel-size=2",), False),
        (2, 1, (), ("-dp", "2"), False),
    ],
)
def test_one_process_on_few_cores(
    cores: int, workers: int, given: tuple[str, ...], arguments: tuple[str, ...], one: bool
) -> None:
    """One worker of vLLM computes where its steps are planned, unless something is said of workers
    or threads."""
    assert has_one_process(cores, workers, given, arguments) is one


def test_the_threads_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread for each core, and one for two hyperthreads. What is given stays."""
    monkeypatch.setattr("weftline_engine.vllm.processor._CORES", tmp_path)
    sleep = {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    assert threads({0, 1, 2}, {}) == {"OMP_NUM_THREADS": "3", **sleep}
    for core, beside in enumerate(("0-1", "0-1", "2")):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(f"{beside}\n")
    given = {"KMP_BLOCKTIME": "0"}
    assert threads({0, 1, 2}, given) == {"OMP_NUM_THREADS": "2", "KMP_TPAUSE": "0"}


def test_the_openmp_beside_vllm_is_loaded(tmp_path: Path) -> None:
    """Where it came with vLLM, and nothing else is loaded already."""
    python = tmp_path / "bin" / "python"
    assert openmp(str(python), {}) == {}
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libiomp5.so"
    library.touch()
    assert openmp(str(python), {}) == {"LD_PRELOAD": str(library)}
    assert openmp(str(python), {"LD_PRELOAD": "mine.so"}) == {}
