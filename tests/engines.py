"""An engine with random weights on any device, and requests that use every part of it.

It needs torch and nothing else. tests/kernels uses it with Triton's interpreter, tests/gpu on a
GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weftline_engine.api import Failed, Kind, Op, Part, SamplingParams
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.model.checkpoint import RandomWeights
from weftline_engine.own.embedded.model.config import (
    Activation,
    HeadNorm,
    LayerKind,
    LinearScaling,
    LlamaConfig,
    MatrixBiases,
    ModelConfig,
    Norms,
    Rope,
    Scales,
)
from weftline_engine.own.embedded.model.device_model import Capture, DeviceModel
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.torch_decoders import torch_model
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_kernels.operations import TORCH, TRITON, Operations

VOCABULARY = 96
BLOCK = 4


class Numbers:
    """A detokenizer that writes token numbers, because the tests look at tokens only."""

    def stream(self, prompt: Sequence[int]) -> Numbers:
        return self

    def push(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def finish(self) -> str:
        return ""


def llama(*, width: int = 16, kv_heads: int = 2, layers: int = 2) -> LlamaConfig:
    """Four query heads, with biases and head norms together, which no real model combines."""
    return LlamaConfig(
        architecture="LlamaForCausalLM",
        vocabulary=VOCABULARY,
        hidden=48,
        layers=layers,
        heads=4,
        kv_heads=kv_heads,
        head_size=width,
        mlp=80,
        context_limit=512,
        tied=False,
        eos=(0,),
        kinds=(LayerKind(Rope(10000.0)),),
        norm_eps=1e-5,
        norms=Norms(heads=HeadNorm.HEAD),
        biases=MatrixBiases(qkv=True),
    )


def mixed(*, layers: int = 2) -> LlamaConfig:
    """Everything that a family may do unlike Llama and that a device computes.

    Layers without a rope, heads turned in part, norms behind attention and MLP and of whole rows,
    biases, multipliers, GELU.
    """
    return replace(
        llama(layers=layers),
        kinds=(LayerKind(Rope(500.0, 12, LinearScaling(2.0), 1.25)), LayerKind(None)),
        norms=Norms(None, "after", "before", "behind", HeadNorm.ROW, offset=1.0),
        biases=MatrixBiases(qkv=True, out=True, mlp=True),
        scales=Scales(3.0, 0.5, 0.2, 2.0, logit_cap=8.0),
        activation=Activation.GELU_TANH,
        tied=True,
    )


def network(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    operations: Operations,
) -> TorchModel:
    return torch_model(config, RandomWeights(), dtype, device, operations)


def core(model: Model, *, blocks: int = 160, max_running: int = 4, **options: Any) -> Core:
    """An engine on a pool of `blocks` KV blocks of 4 tokens. Long prompts come in chunks of 64."""
    config = SchedulerConfig(
        blocks=blocks, block_size=BLOCK, max_running=max_running, step_tokens=64
    )
    return Core(model, config, Numbers(), **options)


def on_cpu(config: ModelConfig, dtype: torch.dtype = torch.float32, **options: Any) -> Core:
    """The engine in plain torch. The others must give the same tokens."""
    return core(HostModel(network(config, dtype, torch.device("cpu"), TORCH)), **options)


def on_device(
    config: ModelConfig,
    capture: Capture,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Core:
    """The engine of a device: Triton's kernels and captured decode steps."""
    weights = network(config, dtype, device, TRITON)
    running = options.get("max_running", 4)
    model = DeviceModel(weights, max_running=running, capture=capture)
    found = core(model, **options)
    model.warm(found.cache)
    return found


def requests(*, prefix: int = 45, tokens: int = 6) -> list[Op]:
    """Six requests. Four share a prefix, and each one samples in a different way."""
    greedy = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    ways = [
        greedy,
        replace(greedy, temperature=0.0, presence_penalty=1.0, logprobs=2),
        replace(greedy, temperature=0.8, seed=1),
        replace(greedy, temperature=0.9, seed=2, top_p=0.8, top_k=40, logprobs=0),
        replace(greedy, temperature=0.0, repetition_penalty=1.2, min_tokens=3),
        replace(greedy, temperature=1.0, seed=3, min_p=0.05, frequency_penalty=0.5),
    ]
    common = _random(0, prefix)
    prompts = [
        *((*common, *_random(1 + i, 3 + 4 * i)) for i in range(4)),
        _random(8, 70),
        _random(9, 2),
    ]
    return [
        Op(
            id=f"op{i}",
            kind=Kind.GENERATE,
            context=f"op{i}.context",
            tokens=prompt,
            sampling=way,
        )
        for i, (prompt, way) in enumerate(zip(prompts, ways, strict=True))
    ]


def run(engine: Core, ops: Sequence[Op]) -> list[list[int]]:
    """The tokens of these ops, submitted together."""
    found: dict[str, list[int]] = {op.id: [] for op in ops}
    for op in ops:
        engine.submit(op)
    while engine.busy:
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Part):
                found[event.op] += event.tokens
    return list(found.values())


def _random(seed: int, count: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, VOCABULARY, (count,), generator=generator).tolist())
