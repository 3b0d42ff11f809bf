"""Measures the C decoder alone at the sizes that people run, by type of its weights.

    make bench-shapes [ARGS="--shape qwen3-1.7b --type bfloat16 --type q4_k_m --isa avx2"]

Weights are random numbers, which take the time of real ones. There is no server, no sampler and no
drafting. The types take turns. A row gives tokens a second of steps that decode behind 64 tokens,
or of a prompt (the median of `--repeat` by the clock), and the CPU seconds of the fastest. The last
column is the share of the bandwidth floor: the time in which all cores read the weights, at the
speed at which they sum an array that no cache holds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.harness import machine
from bench.harness.results import dated, stamp, write
from bench.harness.texts import ROOT
from weftline_engine.embedded.model.base import StepInput
from weftline_engine.embedded.model.checkpoint import RandomWeights
from weftline_engine.embedded.model.config import HeadNorm, LayerKind, LlamaConfig, Norms, Rope
from weftline_engine.embedded.model.matrix import Blocks, Matrix
from weftline_engine.embedded.model.native import NativeDecoder
from weftline_kernels.cpu import Search, load
from weftline_kernels.cpu.blocks import SIZES, WeightType, row_bytes
from weftline_kernels.work_list import Rows, build

_QWEN3 = LlamaConfig(
    architecture="Qwen3ForCausalLM",
    vocabulary=151_936,
    hidden=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_size=128,
    mlp=3072,
    context_limit=40_960,
    tied=True,
    eos=(151_645,),
    kinds=(LayerKind(Rope(1_000_000.0)),),
    norm_eps=1e-6,
    norms=Norms(heads=HeadNorm.HEAD),
)
SHAPES = {
    "qwen3-0.6b": _QWEN3,
    "llama3.2-1b": replace(
        _QWEN3,
        architecture="LlamaForCausalLM",
        vocabulary=128_256,
        hidden=2048,
        layers=16,
        heads=32,
        head_size=64,
        mlp=8192,
        norms=Norms(),
    ),
    "qwen3-1.7b": replace(_QWEN3, hidden=2048, mlp=6144),
    "qwen3-4b": replace(_QWEN3, hidden=2560, layers=36, heads=32, mlp=9728),
}
TYPES = ("bfloat16", "int8", "q8_0", "q4_0", "q4_k", "q4_k_m")
STREAMS, PROMPTS = (1, 8, 32), (500, 2000)
BLOCKS = 512  # of the KV cache, with 16 tokens each


class RandomBlocks(RandomWeights):
    """Random blocks of a type for every matrix. With q4_k_m a matrix has the type that llama.cpp
    gives it in a file of that name."""

    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        self._kind, self._layers = kind, layers

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        kind = self._type_of(name)
        rows = min(shape[0], 64)
        draw = np.random.default_rng(0)
        data = draw.integers(0, 256, (rows, row_bytes(kind, shape[1])), dtype=np.uint8)
        weights, size = SIZES[kind]
        blocks = data.reshape(rows, -1, size)
        scale = np.array([1e-3 if weights == 32 else 1e-5], np.float16).view(np.uint8)
        for at in (208,) if kind == WeightType.Q6_K else (0, 2) if weights == 256 else (0,):
            blocks[..., at : at + 2] = scale
        return Blocks(kind, np.tile(data, (-(-shape[0] // rows), 1))[: shape[0]], shape[1])

    def _type_of(self, name: str) -> WeightType:
        if self._kind != "q4_k_m":
            return WeightType[self._kind.upper()]
        fine = "embed" in name or "lm_head" in name
        if name.endswith(("v_proj.weight", "down_proj.weight")):
            layer, eighth = int(name.split(".")[2]), self._layers // 8
            fine = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        return WeightType.Q6_K if fine else WeightType.Q4_K


@dataclass(frozen=True, slots=True)
class Step:
    """A step of `streams` sequences that compute `tokens` each, behind `start` others."""

    streams: int
    tokens: int
    start: int

    def input(self) -> StepInput:
        """The step as a decoder takes it."""
        room = BLOCKS // self.streams
        at = np.arange(self.start, self.start + self.tokens)
        firsts = [stream * room for stream in range(self.streams)]
        rows = [
            Rows(list(range(first, first + room)), i * self.tokens, self.tokens, self.start)
            for i, first in enumerate(firsts)
        ]
        slots = np.concatenate([first * 16 + at for first in firsts])
        last = torch.arange(1, self.streams + 1) * self.tokens - 1
        tokens = torch.arange(self.streams * self.tokens) % 1000
        every = torch.from_numpy(np.tile(at, self.streams))
        return StepInput(tokens, every, torch.from_numpy(slots), last, build(rows, 16))


def steps_of(prompt: int) -> list[Step]:
    """A prompt in chunks of at most 512 tokens."""
    return [Step(1, min(512, prompt - start), start) for start in range(0, prompt, 512)]


MEASURES: Mapping[str, list[Step]] = {
    **{f"decode {streams}": [Step(streams, 1, 64)] for streams in STREAMS},
    **{f"prompt {prompt}": steps_of(prompt) for prompt in PROMPTS},
}


def bandwidth(threads: int) -> float:
    """Bytes a second that all cores read."""
    torch.set_num_threads(threads)
    array, found = torch.ones(1 << 28), []
    for _ in range(5):
        began = time.perf_counter()
        array.sum()
        found.append(array.numel() * 4 / (time.perf_counter() - began))
    return max(found)


def decoder_of(config: LlamaConfig, kind: str, library: Any) -> NativeDecoder:
    """The decoder with random weights of a type."""
    plain = kind in ("bfloat16", "int8")
    weights = RandomWeights() if plain else RandomBlocks(kind, config.layers)
    return NativeDecoder(config, weights, library, int8=kind == "int8")


def measure(
    decoders: Mapping[str, NativeDecoder], repeat: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Seconds by the clock (the median) and CPU seconds (the least), by type and measure."""
    found: dict[str, dict[str, tuple[float, float]]] = {kind: {} for kind in decoders}
    caches = {kind: decoder.new_cache(BLOCKS, 16) for kind, decoder in decoders.items()}
    for name, steps in MEASURES.items():
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in decoders}
        inputs = [step.input() for step in steps]
        for _ in range(repeat + 1):
            for kind, decoder in decoders.items():
                began, cpu = time.perf_counter(), time.process_time()
                for one in inputs:
                    decoder.forward(one, caches[kind])
                times[kind].append((time.perf_counter() - began, time.process_time() - cpu))
        for kind, each in times.items():
            clock, cpus = zip(*each[1:], strict=True)
            found[kind][name] = (median(clock), min(cpus))
            print(f"  {kind} {name} {median(clock):.3f} s", flush=True)
    return found


def table(report: Mapping[str, Any]) -> str:
    """A row for each measure and type."""
    lines = [f"{'':14}{'type':10}{'tokens/s':>10}{'CPU s':>9}{'of the floor':>14}"]
    for kind, rows in report["types"].items():
        for name, row in rows["measures"].items():
            share = f"{row['of_floor']:.0%}" if "of_floor" in row else ""
            lines.append(
                f"{name:14}{kind:10}{row['tokens_per_s']:10.1f}{row['cpu_s']:9.3f}{share:>14}"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-1.7b")
    parser.add_argument("--type", choices=TYPES, action="append", help="default: three of them")
    parser.add_argument("--isa", default="", help="a variant of the kernels (default: the best)")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    config = SHAPES[options.shape]
    config = replace(config, layers=options.layers or config.layers)
    speed = bandwidth(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        library, choice = load(Search(Path(folder), wanted=options.isa))
        kinds = options.type or ["bfloat16", "q8_0", "q4_k_m"]
        decoders = {kind: decoder_of(config, kind, library) for kind in kinds}
        times = measure(decoders, options.repeat)
    report: dict[str, Any] = {
        **stamp(machine.describe()),
        "shape": options.shape,
        "layers": config.layers,
        "variant": choice.variant.name,
        "threads": options.threads,
        "gb_per_s": round(speed / 1e9, 1),
        "types": {},
    }
    for kind, decoder in decoders.items():
        read = sum(decoder.weight_bytes.values())
        rows = {}
        for name, (clock, cpu) in times[kind].items():
            tokens = sum(step.streams * step.tokens for step in MEASURES[name])
            rows[name] = {"tokens_per_s": round(tokens / clock, 1), "cpu_s": round(cpu, 3)}
            if name.startswith("decode"):
                rows[name]["of_floor"] = round(read / speed / clock, 2)
        report["types"][kind] = {"weights_gb": round(read / 1e9, 2), "measures": rows}
    print(table(report))
    named = "-".join(filter(None, ("shapes", options.shape, options.isa)))
    print(write(dated(report["machine"]), named, report).relative_to(ROOT))


if __name__ == "__main__":
    main()
