"""The engine in its own process: it serves, is killed or orphaned, refuses and closes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waits import WAIT_S, wait_until
from weftline_engine.api import EngineDied, Event, Failed, Finished, Part
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.transport.process import ProcessEngine, environment

Make = Callable[..., Any]


@pytest.fixture
async def engine(tiny_directory: Path) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(EmbeddedConfig(model=tiny_directory, dtype="float64", kv_tokens=1024))
    yield engine
    await engine.close()


async def until(engine: ProcessEngine, count: int) -> list[Event]:
    """Collect events until `count` ops have ended."""
    found: list[Event] = []
    async for events in engine.events():
        found += events
        if sum(isinstance(event, (Finished, Failed)) for event in found) == count:
            return found
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_running(pid))


async def test_it_serves_like_the_core(
    engine: ProcessEngine, generate: Make, tokens_of: Make, make_bench: Make, tiny_directory: Path
) -> None:
    """Every verb reaches the child. The tokens equal those of a core in this process."""
    description = await engine.start()
    assert description.tokenizer == str(tiny_directory / "tokenizer.json")
    assert (description.bos_token, description.eos_token) == ("A", "B")
    assert description.chat_template == "{{ messages }}"
    assert (description.kv_tokens, description.context_limit) == (1024, 512)
    assert description.kv_bytes_per_token == 3 * 2 * 2 * 16 * 8
    prompt = tokens_of(1, 40)
    expected = make_bench().run(generate("op", prompt))[0].tokens
    engine.submit(generate("op", prompt))
    engine.submit(generate("cancelled", prompt, max_tokens=400))
    engine.submit(generate("fed", prompt[:7], open=True))
    engine.feed("fed", 7, prompt[7:], True)
    engine.cancel("cancelled")
    events = await until(engine, 3)
    for name in ("op", "fed"):
        parts = [event for event in events if isinstance(event, Part) and event.op == name]
        assert [token for part in parts for token in part.tokens] == expected
    failed = [event for event in events if isinstance(event, Failed)]
    assert [(event.op, event.error) for event in failed] == [("cancelled", "Cancelled")]
    engine.free("op.context")
    engine.submit(generate("next", [1], parent="op.context"))
    events = await until(engine, 1)
    assert "does not exist" in next(e for e in events if isinstance(e, Failed)).message


async def test_it_computes_on_its_own_cores(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its threads stay on its cores, so two engines of a machine do not disturb each other.

    A spinning thread would keep the thread that it waits for off a core that both need.
    """
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    core = max(os.sched_getaffinity(0))
    config = EmbeddedConfig(model=tiny_directory, dtype="float64", kv_tokens=1024, cores=(core,))
    engine = ProcessEngine(config)
    try:
        await engine.start()
        threads = [int(thread) for thread in os.listdir(f"/proc/{engine.pid}/task")]
        assert {tuple(os.sched_getaffinity(thread)) for thread in threads} == {(core,)}
        given = await asyncio.to_thread(Path(f"/proc/{engine.pid}/environ").read_bytes)
        assert b"GOMP_SPINCOUNT=1000" in given.split(b"\0")
    finally:
        await engine.close()


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_a_user_decides_how_long_threads_spin(name: str) -> None:
    """What the user has set is passed on as it is."""
    assert environment({name: "as it is"}) == {name: "as it is"}


async def test_kill_nine_is_seen_at_once(engine: ProcessEngine, generate: Make) -> None:
    """The reader of events gets EngineDied, and a verb after it raises nothing."""
    await engine.start()
    assert engine.pid is not None
    engine.submit(generate("op", [1, 2], max_tokens=500))
    events = engine.events()
    await anext(events)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="signal 9"):
        async with asyncio.timeout(WAIT_S):
            async for _ in events:
                pass
    engine.submit(generate("late", [1]))  # Verbs never fail.


async def test_close_leaves_no_process(engine: ProcessEngine, generate: Make) -> None:
    """Closing in the middle of an op ends the child process and the stream of events."""
    await engine.start()
    pid = engine.pid
    assert pid is not None
    engine.submit(generate("op", [1, 2], max_tokens=500))
    await engine.close()
    assert not is_running(pid)
    assert engine.pid is None
    assert [events async for events in engine.events() if not events] == []


async def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    """The child's reason is the message of the parent's exception."""
    engine = ProcessEngine(EmbeddedConfig(model=tmp_path))
    with pytest.raises(EngineDied, match=r"did not start: .* holds no tokenizer.json"):
        await engine.start()
    assert engine.pid is None


def test_the_child_ends_with_its_parent(tiny_directory: Path) -> None:
    """The parent is killed while its engine decodes."""
    program = f"""
import asyncio
from pathlib import Path
from weftline_engine.api import Kind, Op, SamplingParams
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.transport.process import ProcessEngine

async def main():
    engine = ProcessEngine(EmbeddedConfig(model=Path({str(tiny_directory)!r}), kv_tokens=1024))
    await engine.start()
    sampling = SamplingParams(max_tokens=500, ignore_eos=True)
    engine.submit(Op(id="a", kind=Kind.GENERATE, context="c", tokens=(1,), sampling=sampling))
    print(engine.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    wait_for_end(pid)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int4"}, "int4"),
        ({"kv_tokens": 3}, "less than a block"),
        ({"step_tokens": 8}, "must exceed max_running"),
        ({"device": "tpu"}, "none of auto, cpu, cuda"),
        ({"kv_fraction": 1.5}, "between 0 and 1"),
        ({"cores": (0, 4096)}, r"cores \[0, 4096\] must be among those of the server: "),
    ],
)
def test_a_config_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    """Settings are checked when they are made, before a process starts."""
    with pytest.raises(ValueError, match=says):
        EmbeddedConfig(model=Path("model"), **options)


def test_the_core_imports_torch_and_no_other_library() -> None:
    """It runs on a GPU machine with only the standard library, numpy and torch."""
    program = """
import sys
blocked = ("tokenizers", "transformers", "safetensors", "fastapi", "pydantic", "httpx2", "gguf")
sys.modules.update(dict.fromkeys(blocked))
import weftline_engine.own.embedded.engine
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
