"""Measures the C decoder's products, norms and exp beside torch in float32, and those in int8.

    python -m bench.micro.kernels [--threads 2] [--turns 9]

It takes the variant that the engine would take; WEFTLINE_ISA names another one. Products have the
shapes of SmolLM2-135M. All sides take turns, and each figure is the median of the turns, as other
programs make single calls slower. "of peak" is the share of the products that the cores make in
registers, "of memory" of the speed at which they read a large array. The last two columns are the
rate in int8, and its ratio to that in bfloat16. One thread is measured by its CPU time, so that
`--threads 1` also tells something on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from weftline_engine.models.cache import default_home
from weftline_kernels.cpu import Search, load
from weftline_kernels.cpu.parts import Parts

SHAPES = {"qkv": (576, 960), "gate_up": (576, 3072), "down": (1536, 576), "head": (576, 49152)}
ROWS = (1, 8, 32, 64, 512)
LAYERS = 8  # copies of a weight, so that few rows read it from memory as a decode step does
MOST_S = 0.5  # of a turn


def main() -> None:
    """Measure every kernel in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--builds", type=Path, default=default_home() / "kernels")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    library, choice = load(Search(given.builds))
    parts = Parts(library, given.threads)
    peak, memory = machine(parts, given.turns)
    print(f"{choice}")
    print(f"{given.threads} threads: {peak / 1e9:.0f} GFLOP/s, reads {memory / 1e9:.1f} GB/s\n")
    print(
        "product         rows   GFLOP/s   of peak   of memory   torch GFLOP/s   ratio"
        "   int8   ratio"
    )
    for name, (inner, width) in SHAPES.items():
        for rows in ROWS:
            product(parts, name, rows, inner, width, given.turns, peak, memory)
    print("\nelements         million/s   torch   ratio")
    elements(parts, given.turns)


def machine(parts: Parts, turns: int) -> tuple[float, float]:
    """The products in a second, as floating point operations, and the bytes read in a second."""
    large = torch.zeros(1 << 26)
    rounds = 2_000_000
    flops = 2 * parts.peak(rounds)
    seconds = medians(turns, lambda: parts.peak(rounds), large.sum)
    return flops / seconds[0], large.numel() * 4 / seconds[1]


def product(
    parts: Parts,
    name: str,
    rows: int,
    inner: int,
    width: int,
    turns: int,
    peak: float,
    memory: float,
) -> None:
    """Print the rate of one product, beside torch's of the same rows with float32 weights."""
    copies = 1 if width > 10_000 else LAYERS
    weights = [torch.randn(width, inner) for _ in range(copies)]
    packed = [parts.weights(weight) for weight in weights]
    small = [parts.weights_int8(weight) for weight in weights]
    x = torch.randn(rows, inner)
    laid = parts.inputs(x)

    def ours() -> None:
        for one in packed:
            parts.product(laid, one, inner, width)

    def theirs() -> None:
        for one in weights:
            torch.nn.functional.linear(x, one)

    def in_int8() -> None:
        for one, scales in small:
            parts.product(laid, one, inner, width, scales)

    seconds = medians(turns, ours, theirs, in_int8)
    flops = 2 * rows * inner * width * copies
    rate, other, eight = (flops / second for second in seconds)
    read = 2 * inner * width * copies / seconds[0]
    print(
        f"{name:14s} {rows:5d} {rate / 1e9:9.1f} {rate / peak:9.0%} {read / memory:11.0%}"
        f" {other / 1e9:15.1f} {rate / other:7.2f} {eight / 1e9:6.0f} {eight / rate:7.2f}"
    )


def elements(parts: Parts, turns: int) -> None:
    """Print the rates of norms and exp, on one thread."""
    torch.set_num_threads(1)
    x, weight = -torch.rand(512, 576) * 80, torch.randn(576)
    out, laid = torch.empty_like(x), parts.inputs(x)
    rows = {
        "exp": (lambda: parts.exp(x, out), lambda: torch.exp(x, out=out)),
        "norm": (
            lambda: parts.norms(x, weight, 1e-5, laid),
            lambda: torch.nn.functional.rms_norm(x, (576,), weight, 1e-5),
        ),
    }
    for name, calls in rows.items():
        rate, other = (x.numel() / second / 1e6 for second in medians(turns, *calls))
        print(f"{name:14s} {rate:11.0f} {other:7.0f} {rate / other:7.2f}")


def medians(turns: int, *calls: Callable[[], object]) -> list[float]:
    """The median seconds of each call, which take turns. The first turn does not count."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    for turn in range(turns + 1):
        for call, found in zip(calls, seconds, strict=True):
            start = clock()
            call()
            if turn:
                found.append(clock() - start)
        if turn > 2 and time.perf_counter() - began > MOST_S * turns:
            break
    return [statistics.median(found) for found in seconds]


if __name__ == "__main__":
    main()
