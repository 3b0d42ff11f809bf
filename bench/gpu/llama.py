"""The decode step of the embedded engine on a LLaMA-7B of random weights, replayed from a graph.

`Decode` is the step alone, without scheduler and sampling; `engine_seconds` times the whole engine.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from weftline_engine.api import Kind, Op, Part, SamplingParams
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import StepInput
from weftline_engine.own.embedded.model.checkpoint import RandomWeights
from weftline_engine.own.embedded.model.config import LayerKind, LlamaConfig, Rope
from weftline_engine.own.embedded.model.device_model import CapturedStep, CudaGraphs, DeviceModel
from weftline_engine.own.embedded.model.torch_decoders import torch_model
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_kernels.operations import TRITON
from weftline_kernels.work_list import SequenceRows, build

BLOCK = 16
NEVER = 10**9
# By the way that keys and values of a prefix are shared: whether they are copied, and whether
# attention reads them once.
MODES = {"tree": (False, True), "blocks_shared": (False, False), "off": (True, False)}

LLAMA_7B = LlamaConfig(
    architecture="LlamaForCausalLM",
    vocabulary=32000,
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=32,
    head_size=128,
    mlp=11008,
    context_limit=8192,
    tied=False,
    eos=(2,),
    kinds=(LayerKind(Rope(10000.0)),),
    norm_eps=1e-5,
)
# For --dry-run: the interpreter takes 10 ms for each tile and head.
TINY = replace(
    LLAMA_7B, vocabulary=40, hidden=32, layers=1, heads=2, kv_heads=2, head_size=16, mlp=24
)


def load(config: LlamaConfig, device: torch.device) -> TorchModel:
    """A model of random bfloat16 weights."""
    return torch_model(config, RandomWeights(), torch.bfloat16, device, TRITON)


def token_bytes(config: LlamaConfig) -> int:
    """Bytes of a token's keys and values in all layers, in bfloat16."""
    return config.layers * 2 * config.kv_heads * config.head_size * 2


def weight_bytes(config: LlamaConfig) -> int:
    """Bytes of weights that a step reads: all but the embedding, of which it reads only rows."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_size * config.hidden
    layer = attention + 3 * config.hidden * config.mlp
    return 2 * (config.layers * layer + config.vocabulary * config.hidden)


def captures(device: torch.device) -> Callable[[Callable[[], Tensor]], Callable[[], Tensor]]:
    """CUDA graphs; in the interpreter, a plain call of the step."""
    return CudaGraphs() if device.type == "cuda" else lambda compute: compute


class Decode:
    """A batch of fixed capacity: `load` a step, then `run` it from its graph."""

    @torch.inference_mode()
    def __init__(self, network: TorchModel, parts: Sequence[SequenceRows], *, shared: bool) -> None:
        """`parts` is the largest step, by KV blocks, that will be loaded."""
        device = network.device
        self.device, self.min_saved = device, 1 if shared else NEVER
        blocks = 1 + max(max(part.blocks) for part in parts)
        # Zeros give uniform attention, which takes the same time and stays finite.
        cache = network.new_cache(blocks, BLOCK)
        self.step = CapturedStep(network, len(parts), cache, captures(device))

    @torch.inference_mode()
    def load(self, parts: Sequence[SequenceRows]) -> None:
        """Set the step that the next `run` computes."""
        starts = np.array([part.start for part in parts])
        slots = [part.blocks[part.start // BLOCK] * BLOCK + part.start % BLOCK for part in parts]
        work = build(parts, BLOCK, min_blocks_saved=self.min_saved)
        tokens, rows = np.ones(len(parts), np.int64), np.arange(len(parts))
        step = StepInput(tokens, starts, np.array(slots), rows, work)
        self.step.load(step)

    @torch.inference_mode()
    def run(self) -> None:
        """Enqueue the loaded step."""
        self.step.replay()


class Silent:
    """A detokenizer whose texts are empty."""

    def stream(self, prompt: Sequence[int]) -> Self:
        return self

    def push(self, tokens: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


def engine_seconds(
    network: TorchModel,
    batch: int,
    prefix: int,
    suffix: int,
    repeat: int,
    *,
    overlap: bool = True,
) -> tuple[float, float]:
    """The median seconds of the whole engine's decode step, and its prompt tokens a second.

    There are `batch` greedy requests with a common prefix; prompts are computed in chunks of 2,048.
    Without `overlap` the engine reads each step's tokens before it plans the next one.
    """
    release(network.device)  # an engine that ran before has its KV cache until then
    # The first request decodes while the prompts of the others are computed.
    prompts = -(-(prefix + batch * suffix) // 2048) + batch // 64
    tokens = repeat + 2 * prompts
    blocks = (prefix + batch * (suffix + tokens + 2)) // BLOCK + 2 * batch + 1
    capture = captures(network.device)
    model = DeviceModel(network, max_running=batch, capture=capture)
    config = SchedulerConfig(
        blocks=blocks, block_size=BLOCK, max_running=batch, step_tokens=max(2048, batch + 1)
    )
    core = Core(model, config, Silent(), overlap=overlap)
    model.warm(core.cache)
    draw = np.random.default_rng(0)
    common = draw.integers(1, network.config.vocabulary, prefix).tolist()
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for i in range(batch):
        own = draw.integers(1, network.config.vocabulary, suffix).tolist()
        prompt = (*common, *own)
        core.submit(
            Op(id=str(i), kind=Kind.GENERATE, context=str(i), tokens=prompt, sampling=sampling)
        )
    begin, times, filled = time.perf_counter(), [], 0.0
    started: set[str] = set()
    while core.busy and len(times) < repeat:
        start = time.perf_counter()
        parts = [event.op for event in core.step() if isinstance(event, Part)]
        if len(started) == batch == len(parts):  # a decode step, whose tokens are there
            times.append(time.perf_counter() - start)
        started |= set(parts)
        if len(started) == batch and not filled:
            filled = time.perf_counter() - begin
    return sorted(times)[len(times) // 2], (prefix + batch * suffix) / filled


def tables(prefix: int, totals: Sequence[int], *, copied: bool) -> list[list[int]]:
    """The KV blocks of sequences of `totals` tokens that share `prefix`, or have a copy
    of it each.
    """
    common = 0 if copied else prefix // BLOCK
    used, found = 1 + common, []
    for total in totals:
        own = -(-total // BLOCK) - common
        found.append([*range(1, 1 + common), *range(used, used + own)])
        used += own
    return found


def step_seconds(decode: Decode, parts: Sequence[SequenceRows], repeat: int) -> float:
    """The median seconds of a step, without the loading of its tiles."""
    decode.load(parts)
    decode.run()
    times = []
    for _ in range(repeat):
        synchronize(decode.device)
        start = time.perf_counter()
        decode.run()
        synchronize(decode.device)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeat // 2]


def fits(config: LlamaConfig, blocks: int, device: torch.device) -> bool:
    """Whether a cache of `blocks` KV blocks leaves 4 GiB for a step."""
    if device.type != "cuda":
        return True
    return token_bytes(config) * BLOCK * blocks < torch.cuda.mem_get_info(device)[0] - 4 * 2**30


def release(device: torch.device) -> None:
    """Free the device's memory of engines that have ended: they are in cycles, and hold their KV
    cache until the next collection."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait for a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
