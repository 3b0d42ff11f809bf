"""Measures the C decoder alone at the sizes that people run, by type of its weights.

    make bench-shapes [ARGS="--shape qwen3-1.7b --type bfloat16 --type q4_k_m --isa avx2 --llama"]

Weights are random numbers, which take the time of real ones. There is no server, no sampler and no
drafting. The types take turns. A row gives tokens a second of steps that decode behind 64 tokens or
more, or of a prompt: the median and the quartiles of `--repeat` turns by the clock. `CPU s` are the
seconds of the fastest turn. The share of the floor is that of the time in which all cores read the
weights: at the speed at which they read an array of large pages that no cache holds, in the best of
several ways. A mixture of experts has none, because a step reads the experts that its rows choose.

With `--llama`, llama.cpp's own benchmark computes a file of the same weights in the same turns
(`make install-llama-bench`). It decodes as many tokens behind as many. A ratio compares runs of one
turn. With `--resume`, turns that today's raw file of the same sources and shape holds are not run
again.

`--part load` measures another thing: the seconds until a server answers from a GGUF file of Q4_K_M,
and the memory of its engine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import machine
from bench.harness.metrics import spread
from bench.harness.results import RAW, dated, stamp, write
from bench.harness.resume import of_these_sources
from bench.harness.texts import ROOT
from bench.micro._llama_bench import LlamaBench
from bench.micro._model_load import loads
from tests.random_gguf import write_gguf
from tests.random_models import SHAPES, TYPES, RandomBlocks
from weftline_engine.own.embedded.model.base import StepInput
from weftline_engine.own.embedded.model.checkpoint import RandomWeights
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_kernels.cpu.loader import LibrarySearch, load
from weftline_kernels.cpu.memory import WeightMemory
from weftline_kernels.work_list import SequenceRows, build

STREAMS, PROMPTS = (1, 8, 32), (500, 2000)
START, DECODED = 64, 16  # tokens before those that are decoded, and how many are
BLOCKS = 512  # of the KV cache, with 16 tokens each


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
            SequenceRows(list(range(first, first + room)), i * self.tokens, self.tokens, self.start)
            for i, first in enumerate(firsts)
        ]
        slots = np.concatenate([first * 16 + at for first in firsts])
        last = np.arange(1, self.streams + 1) * self.tokens - 1
        tokens = np.arange(self.streams * self.tokens) % 1000
        return StepInput(tokens, np.tile(at, self.streams), slots, last, build(rows, 16))


def steps_of(prompt: int) -> list[Step]:
    """A prompt in chunks of at most 512 tokens."""
    return [Step(1, min(512, prompt - start), start) for start in range(0, prompt, 512)]


MEASURES: Mapping[str, list[Step]] = {
    **{
        f"decode {streams}": [Step(streams, 1, START + i) for i in range(DECODED)]
        for streams in STREAMS
    },
    **{f"prompt {prompt}": steps_of(prompt) for prompt in PROMPTS},
}


def bandwidth(library: ctypes.CDLL, threads: int) -> float:
    """Bytes a second that all cores read of large pages, the best of several ways: how many pieces
    each core reads side by side, and how far ahead it prefetches."""
    array, found = WeightMemory(1 << 30).bytes(1 << 30), 0.0
    array.fill(1)
    read = library.weftline_read
    read.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_int32,
    ]
    read.restype = ctypes.c_uint32
    for _, streams, ahead in product(range(3), (1, 2, 4, 8), (0, 1024, 4096, 16384)):
        began = time.perf_counter()
        read(array.ctypes.data, array.nbytes, streams, ahead, threads)
        found = max(found, array.nbytes / (time.perf_counter() - began))
    return found


def decoder_of(config: LlamaConfig, kind: str, library: Any, threads: int) -> NativeDecoder:
    """The decoder with random weights of a type."""
    plain = kind == "bfloat16"
    weights = RandomWeights() if plain else RandomBlocks(kind, config.layers)
    return NativeDecoder(config, weights, library, threads=threads)


# A turn's tokens a second, and CPU seconds.
Turn = Callable[[], Mapping[str, tuple[float, float]]]


def turn_of(decoder: NativeDecoder, measures: Mapping[str, list[Step]]) -> Turn:
    """The measures once on our decoder."""
    cache = decoder.new_cache(BLOCKS, 16)
    first = Step(1, 1, START).input()
    inputs = {name: [step.input() for step in steps] for name, steps in measures.items()}

    def turn() -> Mapping[str, tuple[float, float]]:
        found = {}
        for name, steps in measures.items():
            decoder.forward(first, cache)  # wakes the threads
            began, cpu = time.perf_counter(), time.process_time()
            for one in inputs[name]:
                decoder.forward(one, cache)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            tokens = sum(step.streams * step.tokens for step in steps)
            found[name] = (tokens / seconds, cpu)
        return found

    return turn


def turn_of_llama(llama: LlamaBench, part: str | None) -> Turn:
    """The measures of a part once in llama.cpp, whose CPU time is not measured."""

    def turn() -> Mapping[str, tuple[float, float]]:
        found: dict[str, float] = {}
        if part != "prompt":
            found |= llama.decoding(STREAMS, START, DECODED)
        if part != "decode":
            found |= llama.prompting(PROMPTS)
        return {name: (rate, 0.0) for name, rate in found.items()}

    return turn


Rates = dict[str, dict[str, list[tuple[float, float]]]]  # by system and measure, in turns


def measure(systems: Mapping[str, Turn], repeat: int, found: Rates, path: Path) -> Rates:
    """The measures of all systems in turns, behind those that were found before. Every second turn
    has the other order. What is found is kept in `path` after each run."""
    rates: Rates = {name: defaultdict(list, found.get(name, {})) for name in systems}
    for number in range(repeat):
        for name in list(systems) if number % 2 else reversed(list(systems)):
            if any(len(turns) > number for turns in rates[name].values()):
                continue
            for one, rate in systems[name]().items():
                rates[name][one].append(rate)
                print(f"  {number} {name} {one} {rate[0]:.1f}", flush=True)
            write(path.parent, path.stem, {**stamp(machine.describe()), "rates": rates})
    return rates


def summary(rates: Rates, weights: Mapping[str, int], speed: float | None) -> dict[str, Any]:
    """Medians and quartiles of tokens a second by system and measure, and ratios to the peers: to
    bfloat16, and to llama.cpp with weights of that type. `speed` is the floor's bytes a second."""
    found: dict[str, Any] = {}
    for name, measures in rates.items():
        rows: dict[str, Any] = {}
        for one, turns in measures.items():
            row: dict[str, Any] = {"tokens_per_s": spread([rate for rate, _ in turns]).to_json()}
            rows[one] = row
            if name in weights:
                row["cpu_s"] = round(min(cpu for _, cpu in turns), 3)
            if name in weights and one.startswith("decode") and speed is not None:
                steps = row["tokens_per_s"]["median"] / int(one.split()[1])
                row["of_floor"] = round(weights[name] / speed * steps, 2)
            for peer in ("bfloat16", f"llama {name}"):
                if peer in rates and peer != name and name in weights:
                    pairs = zip(turns, rates[peer][one], strict=True)
                    row[f"over {peer}"] = spread([a / b for (a, _), (b, _) in pairs]).to_json()
        gigabytes = {"weights_gb": round(weights[name] / 1e9, 2)} if name in weights else {}
        found[name] = {**gigabytes, "measures": rows}
    return found


def table(systems: Mapping[str, Any]) -> str:
    """A row for each measure and system."""
    lines = [f"{'':14}{'type':16}{'tokens/s':>10}{'CPU s':>9}{'of the floor':>14}   ratios"]
    for name, rows in systems.items():
        for one, row in rows["measures"].items():
            share = f"{row['of_floor']:.0%}" if "of_floor" in row else ""
            ratios = "; ".join(
                f"{of['median']:.2f} ({of['low']:.2f} to {of['high']:.2f}) {key}"
                for key, of in row.items()
                if key.startswith("over")
            )
            lines.append(
                f"{one:14}{name:16}{row['tokens_per_s']['median']:10.1f}"
                f"{row.get('cpu_s', 0.0):9.3f}{share:>14}   {ratios}"
            )
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    """The command line. Exits if llama.cpp cannot be compared."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-1.7b")
    parser.add_argument("--type", choices=TYPES, action="append", help="default: three of them")
    parser.add_argument("--isa", default="", help="a variant of the kernels (default: the best)")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--part", choices=("decode", "prompt", "load"), help="these alone")
    parser.add_argument("--resume", action="store_true", help="keep the turns of today's raw file")
    parser.add_argument("--llama", action="store_true", help="llama.cpp on the same weights, too")
    options = parser.parse_args()
    options.type = options.type or ["bfloat16", "q8_0", "q4_k_m"]
    options.program = ROOT / ".venv-llama" / f"llama-batched-bench{options.isa and '-avx2'}"
    if options.llama and options.isa not in ("", "avx2"):
        parser.error("llama.cpp is built for this machine and for avx2")
    if options.llama and SHAPES[options.shape].experts is not None:
        parser.error("no GGUF is written of a mixture of experts")
    if options.llama and not options.program.is_file():
        parser.error(f"{options.program} is missing: run make install-llama-bench")
    return options


def folder_of_models() -> Path:
    """Where files of random weights are kept."""
    files = ROOT / "out" / "models"
    files.mkdir(parents=True, exist_ok=True)
    return files


def systems_of(
    decoders: Mapping[str, NativeDecoder], options: argparse.Namespace, config: LlamaConfig
) -> dict[str, Turn]:
    """Our decoder with each type of weights, and llama.cpp with those that are quantised."""
    found: dict[str, Turn] = {}
    measures = {
        name: steps for name, steps in MEASURES.items() if name.startswith(options.part or "")
    }
    files = folder_of_models()
    for kind, decoder in decoders.items():
        found[kind] = turn_of(decoder, measures)
        if options.llama and kind != "bfloat16":
            path = files / f"{options.shape}-{config.layers}-{kind}.gguf"
            if not path.is_file():
                write_gguf(path.with_suffix(".new"), config, kind).replace(path)
            llama = LlamaBench(options.program, path, options.threads, shares=not config.taps)
            found[f"llama {kind}"] = turn_of_llama(llama, options.part)
    return found


def main() -> None:
    """Measure, print and write."""
    options = read_options()
    config = SHAPES[options.shape]
    config = replace(config, layers=options.layers or config.layers)
    about = stamp(machine.describe())
    results = dated(about["machine"])
    layers = f"{options.layers}-layers" if options.layers else None
    named = "-".join(filter(None, ("shapes", options.shape, layers, options.part, options.isa)))
    report: dict[str, Any] = {**about, "shape": options.shape, "layers": config.layers}
    if options.part == "load":
        if options.resume and of_these_sources(results / f"{named}.json", about["machine"]):
            return
        report["load"] = loads(folder_of_models(), options.shape, config, "q4_k_m", options.repeat)
        print(json.dumps(report["load"], indent=1))
    else:
        raw = results / RAW / f"{named}.json"
        report |= rates_of(config, options, raw)
        print(table(report["systems"]))
    print(write(results, named, report).relative_to(ROOT))


def rates_of(config: LlamaConfig, options: argparse.Namespace, raw: Path) -> dict[str, Any]:
    """The floor's speed, and the rows of all systems."""
    with tempfile.TemporaryDirectory() as folder:
        library, choice = load(LibrarySearch(Path(folder), wanted=options.isa))
        speed = bandwidth(library, options.threads)
        print(f"  all cores read {speed / 1e9:.1f} GB/s", flush=True)
        decoders = {
            kind: decoder_of(config, kind, library, options.threads) for kind in options.type
        }
        systems = systems_of(decoders, options, config)
        before = of_these_sources(raw, machine.describe()) if options.resume else None
        rates = measure(systems, options.repeat, before["rates"] if before else {}, raw)
    weights = {kind: sum(one.weight_bytes.values()) for kind, one in decoders.items()}
    return {
        "variant": choice.variant.name,
        "threads": options.threads,
        "gb_per_s": round(speed / 1e9, 1),
        "systems": summary(rates, weights, None if config.experts else speed),
    }


if __name__ == "__main__":
    main()
