"""What is said of a GPU's memory and number before weights are read."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch

from weftline_engine.own import loading
from weftline_engine.own.embedded import torch_device
from weftline_engine.own.embedded.model.config import ModelError

GPU = torch.device("cuda", 0)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """140 GB of weights and 78 GB of free memory: the sentence has the line for several GPUs."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (78 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    torch_device.check_memory(GPU, 78 * 10**9)
    with pytest.raises(ModelError) as error:
        torch_device.check_memory(GPU, 140 * 10**9)
    assert str(error.value) == (
        "the weights need 140.0 GB, and 78.0 GB of the GPU's memory are free; take a smaller "
        "model, or spread it over 4 GPUs by vLLM: weftline serve MODEL --engine vllm "
        "--engine-python PYTHON --tensor-parallel 4"
    )


def test_a_machine_with_several_gpus_is_told_that_one_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one there is nothing to say."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert torch_device.one_of_several() == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert torch_device.one_of_several() == (
        "one of 2 GPUs computes: start a replica on each, with CUDA_VISIBLE_DEVICES, or spread it "
        "over 2 GPUs by vLLM: weftline serve MODEL --engine vllm --engine-python PYTHON "
        "--tensor-parallel 2."
    )


class OnGpu:
    """A model whose weights are on a GPU."""

    device = torch_device.TorchDevice(GPU)


def test_free_memory_is_measured_after_the_largest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--kv-fraction` of 1,000,000 bytes, for tokens of 100 bytes. With `--kv-tokens` neither is
    needed."""
    seen: list[str] = []

    def free(device: torch.device) -> tuple[int, int]:
        seen.append("memory")
        return 1_000_000, 2_000_000

    def step(decoder: Any, rows: int, block_size: int) -> None:
        seen.append(f"a step of {rows}")

    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    monkeypatch.setattr(loading, "largest_step", step)
    options = Namespace(
        max_running=4, step_tokens=None, kv_tokens=None, kv_fraction=0.5, block_size=16
    )
    config = loading._scheduling(options, OnGpu(), None, 100)  # type: ignore[arg-type]
    assert seen == ["a step of 2048", "memory"]
    assert config.blocks == 5000 // 16
    options.kv_tokens = 3200
    assert loading._scheduling(options, OnGpu(), None, 100).blocks == 200  # type: ignore[arg-type]
    assert len(seen) == 2
