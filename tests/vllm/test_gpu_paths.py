"""Our scheduler where vLLM does on a GPU what its build for CPUs does not.

The parts run without a model (gpu_paths.py). That workers are processes of
their own is so on a CPU, too: there the contract runs with them.
"""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from tests.contract.target import Target
from weftline_engine.remote.vllm.engine import VLLMEngine

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def found(plans: dict[str, Any]) -> Any:
    return plans["gpu"]


def test_decode_steps_have_the_cuda_graphs_of_vllms_own(found: dict[str, Any]) -> None:
    """Five requests end one after the other. Each decode step fits a captured size: of three
    requests that of four. A prompt's step has none in this mode."""
    assert (
        found["graphs"]
        == found["vllm's"]
        == [
            [100, "NONE", 100],
            [5, "FULL", 5],
            [4, "FULL", 4],
            [3, "FULL", 4],
            [2, "FULL", 2],
            [1, "FULL", 1],
        ]
    )


def test_a_planned_step_needs_nothing_of_ours_in_a_worker(found: dict[str, Any]) -> None:
    """vLLM pickles it for its worker processes, which may lack our package."""
    assert found["crossing"] == {"same": True, "ours": False}


def test_keys_and_values_come_back_from_host_memory(found: dict[str, Any]) -> None:
    """The request waits for one load, and computes the eight tokens behind it."""
    assert found["reloaded"] == [[{}, 1], [{"second": 8}, 0], [{"second": 1}, 0]]


def test_full_host_memory_drops_what_is_read_last(found: dict[str, Any]) -> None:
    """An ended context first, and of the furthest one its end. vLLM by itself drops the first
    agent's, which comes back first."""
    assert found["dropped"] == {
        "ours": {"a": 64, "b": 48, "c": 0, "d": 64},
        "LRU": {"a": 0, "b": 48, "c": 64, "d": 64},
    }


def test_a_prompt_leaves_the_limit_between_two_tokens(found: dict[str, Any]) -> None:
    """A prompt token takes 1 ms, and a step 10 ms more. Within 0.2 s fit 190 tokens beside an
    answer. Without a limit all 600 are one step."""
    alone = [{"answer": 1}]
    assert found["beside"]["None"] == [{"answer": 1, "prompt": 600}, *alone * 6]
    chunks = [{"answer": 1, "prompt": tokens} for tokens in (190, 190, 190, 30)]
    assert found["beside"]["0.2"] == [*chunks, *alone * 3]


def test_kept_contexts_give_way_to_a_request_that_was_loaded(found: dict[str, Any]) -> None:
    """Its load took the last free blocks. It holds them while it waits, and stands in another queue
    of vLLM's."""
    steps, pinned = found["crowded"]
    assert steps[-2:] == [[{"second": 48}, 0], [{"second": 1}, 0]]
    assert steps[0] == [{}, 1] and pinned < 2


def test_what_is_slower_to_load_is_computed_and_not_stored(found: dict[str, Any]) -> None:
    """The request has 64 tokens that are in host memory, and 32 others. Where a load takes longer
    than computing, all 96 are computed, and nothing of them is copied."""
    steps, before, after = found["fast"]
    assert steps == [[{}, 1], [{"second": 32}, 0], [{"second": 1}, 0]] and before and after
    steps, before, after = found["slow"]
    assert steps == [[{"second": 96}, 0], [{"second": 1}, 0]] and before and not after


@pytest.mark.asyncio(loop_scope="session")
async def test_the_worker_is_another_process_than_our_scheduler(scheduled: Target) -> None:
    """The contract passes with it (test_contract_vllm.py)."""
    engine = scheduled.engine
    assert isinstance(engine, VLLMEngine) and engine._child is not None
    family = psutil.Process(engine._child.pid).children(recursive=True)
    names = [" ".join(one.cmdline()) for one in family]
    assert any("EngineCore" in name for name in names), names
    assert any("Worker" in name for name in names), names
