"""Measures the embedded engine alone: prefill, decode, shared prefixes, and memory.

    python -m bench.micro.engine_alone MODEL_DIRECTORY [--dtype bfloat16] [--repeat 3]

It prints JSON. Every number is the best of its repeats, because other processes on the machine
only make it worse. All repeats are printed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from weftline_engine.api import Kind, Op, Part, SamplingParams
from weftline_engine.bookkeeping.schedule.scheduler import SchedulerConfig
from weftline_engine.embedded.engine import Core
from weftline_engine.embedded.model.decoders import load_decoder
from weftline_engine.models.cache import default_home


class NoText:
    """A detokenizer whose texts are empty, as text is not measured."""

    def stream(self, prompt: Sequence[int]) -> NoText:
        return self

    def push(self, tokens: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(100, 40_000, (count,), generator=generator).tolist())


class Bench:
    """Runs prompts on a core and notes when their tokens arrive."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.count = 0

    def run(self, prompts: Sequence[tuple[int, ...]], output: int) -> list[list[float]]:
        """Generate for all prompts at once; for each prompt, 0.0 and the seconds of its tokens."""
        start, times = time.perf_counter(), {}
        for prompt in prompts:
            self.count += 1
            name = f"op{self.count}"
            times[name] = [0.0]
            sampling = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True)
            op = Op(id=name, kind=Kind.GENERATE, context=name, tokens=prompt, sampling=sampling)
            self.core.submit(op)
        while self.core.busy:
            for event in self.core.step():
                if isinstance(event, Part):
                    times[event.op].append(time.perf_counter() - start)
        for name in times:
            self.core.free(name)
        return list(times.values())

    def decode(self, batch: int, seed: int, context: int = 128, output: int = 48) -> float:
        """Tokens a second, from when all prompts have their first token."""
        prompts = [tokens_of(1000 * seed + i, context) for i in range(batch)]
        times = self.run(prompts, output)
        begin = max(one[1] for one in times)
        end = max(one[-1] for one in times)
        done = sum(sum(at > begin for at in one) for one in times)
        return done / (end - begin)

    def prefill(self, length: int, seed: int) -> float:
        times = self.run([tokens_of(5000 + 100 * seed + length, length)], 1)
        return length / times[0][1]

    def shared(self, groups: int, members: int, prefix: int, seed: int) -> float:
        """Output tokens a second from start to end; each group shares a prefix."""
        prompts = [
            (*tokens_of(9000 + 10 * seed + group, prefix), *tokens_of(77 + group + i * 31, 20))
            for group in range(groups)
            for i in range(members)
        ]
        times = self.run(prompts, 48)
        return 48 * len(prompts) / max(one[-1] for one in times)


def main() -> None:
    """Measure a model in every way, and print the best of its runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    begin = time.perf_counter()
    decoder = load_decoder(options.model, options.dtype, 16, default_home() / "kernels")
    loaded = time.perf_counter() - begin
    bench = Bench(Core(decoder, SchedulerConfig(blocks=3000, max_running=64), NoText()))
    bench.decode(1, 0, output=4)
    measures: dict[str, Callable[[int], float]] = {
        **{f"decode_{b}": partial(bench.decode, b) for b in (1, 8, 32, 64)},
        **{f"prefill_{n}": partial(bench.prefill, n) for n in (500, 2000)},
        "shared_16x2000": partial(bench.shared, 1, 16, 2000),
        "shared_4x4x1000": partial(bench.shared, 4, 4, 1000),
    }
    chosen = {name: run for name, run in measures.items() if name.startswith(options.only)}
    runs = {name: [run(i + 1) for i in range(options.repeat)] for name, run in chosen.items()}
    report = {
        "model": options.model.name,
        "dtype": options.dtype,
        "decoder": type(decoder).__name__,
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "load_s": round(loaded, 2),
        "peak_resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "tokens_per_s": {name: round(max(values), 1) for name, values in runs.items()},
        "all": {name: [round(value, 1) for value in values] for name, values in runs.items()},
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
