"""Times whole steps of the embedded engine on models of random weights, beside the memory floor.

A decode step is replayed from its graph (captured) or launched kernel by kernel. The floor is the
time to read the weights, and the keys and values, once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from bench.gpu import attention, llama
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.costs import kv_costs
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import StepInput
from weftline_engine.own.embedded.model.config import HeadNorm, LlamaConfig, Norms
from weftline_engine.own.embedded.model.device_model import DeviceModel
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_engine.own.embedded.step_inputs import chunk_cost
from weftline_kernels.work_list import SequenceRows, build

SHAPES = {
    "SmolLM2-135M": replace(
        llama.LLAMA_7B, vocabulary=49152, hidden=576, layers=30, heads=9, kv_heads=3, head_size=64,
        mlp=1536, tied=True,
    ),
    "Qwen3-1.7B": replace(
        llama.LLAMA_7B, vocabulary=151936, hidden=2048, layers=28, heads=16, kv_heads=8, mlp=6144,
        tied=True, norms=Norms(heads=HeadNorm.HEAD),
    ),
    "Llama-3-8B": replace(
        llama.LLAMA_7B, vocabulary=128256, kv_heads=8, mlp=14336,
    ),
}  # fmt: skip
STREAMS = (1, 32, 256)
TOKENS = 500  # of context of each stream
PROMPT = 2048  # tokens of a prompt's step
REPEATS = 15


def shapes(dry: bool) -> dict[str, LlamaConfig]:
    """The models, or a tiny one for a dry run."""
    return {"tiny": llama.TINY} if dry else SHAPES


def rows(device: torch.device, dry: bool) -> Iterator[dict[str, object]]:
    """A row for each model and number of streams, then one for a prompt and one for the engine."""
    roof = attention.bandwidth(device)
    yield {"roof_gb_s": roof / 1e9}
    for name, config in shapes(dry).items():
        network = llama.load(config, device)
        for streams in (2,) if dry else STREAMS:
            yield {"shape": name, **_decode(network, streams, 20 if dry else TOKENS, roof)}
        yield {"shape": name, **_prompt(network, 24 if dry else PROMPT)}
        for streams in (2,) if dry else STREAMS[:2]:
            yield {"shape": name, **_engine(network, streams, dry)}
        del network


def swaps(device: torch.device, dry: bool) -> Iterator[dict[str, object]]:
    """A row for each model: what LAMPS compares, a token computed again or copied back."""
    for name, config in shapes(dry).items():
        network = llama.load(config, device)
        blocks = 16 if dry else 512
        scheduling = SchedulerConfig(
            blocks=blocks, block_size=llama.BLOCK, max_running=4, step_tokens=32 if dry else PROMPT
        )
        model = DeviceModel(network, max_running=4, capture=llama.captures(device))
        core = Core(model, scheduling, llama.Silent())
        model.warm(core.cache)
        found = kv_costs(
            chunk_cost(model, core.cache, scheduling), core.cache, model.device, scheduling
        )
        assert found is not None, "the step was measured"
        token = llama.token_bytes(config)
        yield {
            "shape": name,
            "step_ms": found.step_s * 1e3,
            "computed_tokens_per_s": 1 / found.fill_s,
            "copied_tokens_per_s": 1 / found.copy_s,
            "copied_gb_s": token / found.copy_s / 1e9,
        }
        del core, model, network


def _decode(network: TorchModel, streams: int, tokens: int, roof: float) -> dict[str, object]:
    """The milliseconds of a decode step of streams that share nothing."""
    config, device = network.config, network.device
    assert isinstance(config, LlamaConfig), "the shapes are of the Llama family"
    tables = llama.tables(0, [tokens] * streams, copied=True)
    parts = [SequenceRows(table, i, 1, tokens - 1) for i, table in enumerate(tables)]
    decode = llama.Decode(network, parts, shared=False)
    captured = llama.step_seconds(decode, parts, 1 if device.type != "cuda" else REPEATS)
    del decode
    floor = (llama.weight_bytes(config) + streams * tokens * llama.token_bytes(config)) / roof
    return {
        "streams": streams,
        "captured_ms": captured * 1e3,
        "launched_ms": _launched(network, parts, tables) * 1e3,
        "floor_ms": floor * 1e3,
        "part_of_floor": floor / captured,
        "tokens_per_s": streams / captured,
    }


def _launched(network: TorchModel, parts: list[SequenceRows], tables: list[list[int]]) -> float:
    """The median seconds of a step that is launched kernel by kernel."""
    model = DeviceModel(network, max_running=1, capture=lambda compute: compute)
    cache = network.new_cache(1 + tables[-1][-1], llama.BLOCK)
    count = sum(part.count for part in parts)
    starts = np.concatenate([np.arange(part.start, part.start + part.count) for part in parts])
    slots = np.concatenate(
        [
            np.array([part.blocks[at // llama.BLOCK] * llama.BLOCK + at % llama.BLOCK
                          for at in range(part.start, part.start + part.count)])
            for part in parts
        ]
    )  # fmt: skip
    last = np.array([part.first + part.count - 1 for part in parts])
    work = build(parts, llama.BLOCK, min_blocks_saved=8)
    step = StepInput(np.ones(count, np.int64), starts, slots, last, work)
    times = []
    with torch.inference_mode():
        for _ in range(1 + (1 if network.device.type != "cuda" else REPEATS)):
            began = time.perf_counter()
            model.forward(step, cache)
            llama.synchronize(network.device)
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _prompt(network: TorchModel, tokens: int) -> dict[str, object]:
    """The tokens a second of one step of a prompt, and the arithmetic that they take."""
    config = network.config
    assert isinstance(config, LlamaConfig), "the shapes are of the Llama family"
    tables = llama.tables(0, [tokens], copied=True)
    took = _launched(network, [SequenceRows(tables[0], 0, tokens, 0)], tables)
    head = config.vocabulary * config.hidden  # it computes one row of the logits
    work = tokens * (llama.weight_bytes(config) - 2 * head)
    return {"prompt": tokens, "tokens_per_s": tokens / took, "tflop_s": work / took / 1e12}


def _engine(network: TorchModel, streams: int, dry: bool) -> dict[str, object]:
    """The milliseconds of a decode step with scheduler, sampling and texts, and of one whose tokens
    are read before the next one is planned."""
    prefix, suffix, repeat = (6, 3, 2) if dry else (0, TOKENS, 40)
    row: dict[str, object] = {"streams": streams}
    for name, overlap in (("engine_ms", True), ("engine_one_by_one_ms", False)):
        seconds, _ = llama.engine_seconds(network, streams, prefix, suffix, repeat, overlap=overlap)
        row[name] = seconds * 1e3
    return row
