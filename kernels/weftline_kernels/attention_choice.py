"""Measures the attention libraries beside our kernel when an engine starts, and chooses.

The work is that of one layer of the model, on random keys and values. A library that fails, or
whose result is not ours, is left out with a reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from weftline_kernels.attention import Attention
from weftline_kernels.libraries import LIBRARIES, AttentionLibrary
from weftline_kernels.library_attention import ADAPTERS, AttentionShape, OwnRoom, refusal
from weftline_kernels.step_attention import StepAttention, StepKind
from weftline_kernels.work_list import Rows, WorkList, build

# A function that computes on fixed buffers becomes one that computes again, as in a CUDA graph. It
# keeps the addresses of tensors, and none of the tensors alive: who captures keeps the function.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

OURS = "weftline"
# A library must take at most this share of our kernel's time: a second measurement may differ by
# some percent, and outputs should not change from start to start because of that.
LEAST_GAIN = 0.95
# The measured step: sequences, tokens of each, common tokens, and rows of a prompt's chunk.
STREAMS, TOKENS, COMMON, CHUNK = 32, 512, 2048, 1024
# Layers of a measured graph, and how often it runs. The fastest counts.
LAYERS, REPEATS = 8, 5
# The largest difference of a library's result from ours, of the largest value: rounding to 16 bits.
TOLERANCE = 3e-2


@dataclass(frozen=True, slots=True)
class Trial:
    """The seconds of a layer by kind of step and by name, and why libraries were left out."""

    seconds: Mapping[StepKind, Mapping[str, float]] = field(default_factory=dict)
    refused: Mapping[AttentionLibrary, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialSize:
    """How large the measured steps are."""

    streams: int = STREAMS
    tokens: int = TOKENS
    common: int = COMMON
    chunk: int = CHUNK


def choose(seconds: Mapping[StepKind, Mapping[str, float]]) -> dict[StepKind, str]:
    """The fastest of each kind of step, and ours where the gain is small."""
    chosen = {}
    for kind, each in seconds.items():
        best = min(each, key=lambda name: (each[name], name))
        chosen[kind] = best if each[best] <= LEAST_GAIN * each[OURS] else OURS
    return chosen


def told(trial: Trial, chosen: Mapping[StepKind, str]) -> str:
    """The choice and its numbers, for the log."""
    parts = []
    for kind, each in trial.seconds.items():
        order = sorted(each, key=lambda name: (name != chosen[kind], each[name]))
        numbers = ", ".join(f"{name} {each[name] * 1e6:.0f} us" for name in order)
        parts.append(f"{chosen[kind]} for {kind} ({numbers} a layer)")
    words = "; ".join(parts) or "weftline's kernels"
    left = "".join(f" {one.name} is left out: {why}." for one, why in trial.refused.items())
    return f"attention: {words}.{left}"


def installed() -> list[AttentionLibrary]:
    """The libraries of this machine."""
    return [one for one in LIBRARIES if one.version() is not None]


@torch.inference_mode()
def measure(
    shape: AttentionShape,
    device: torch.device,
    capture: Capture,
    libraries: Iterable[AttentionLibrary],
    *,
    size: TrialSize | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Measure what can be measured. Without a usable library nothing is."""
    refused = {one: why for one in libraries if (why := refusal(one, shape))}
    rest = [one for one in libraries if one not in refused]
    seconds: dict[StepKind, dict[str, float]] = {}
    works = _works(shape.block_size, size or TrialSize()) if rest else {}
    for kind, work in works.items():
        bench = _Bench(shape, device, capture if kind is not StepKind.PROMPT else _launched, work)
        ours = bench.run(None, kind)
        each = {OURS: bench.seconds(ours, clock)}
        for library in [one for one in rest if one not in refused]:
            try:
                theirs = bench.run(library, kind)
                bench.check(theirs, ours)
                each[library.name] = bench.seconds(theirs, clock)
            except Exception as error:  # a library raises, and compiles, as it likes
                refused[library] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        seconds[kind] = each
    names = {one.name for one in refused}
    kept = {kind: {n: s for n, s in each.items() if n not in names}
            for kind, each in seconds.items()}  # fmt: skip
    return Trial(kept, refused)


class _Bench:
    """One layer of attention of a step on random numbers."""

    def __init__(
        self, shape: AttentionShape, device: torch.device, capture: Capture, work: WorkList
    ) -> None:
        self._shape, self._device, self._capture, self._work = shape, device, capture, work
        self._computes: list[Callable[[], Tensor]] = []
        blocks = 1 + max(int(item.blocks.max()) for item in work.items)
        draw = partial(torch.randn, dtype=shape.dtype, device=device)
        self._q_RNH = draw(work.rows, shape.heads, shape.head_size)
        cache = draw(2, shape.kv_heads, blocks, shape.block_size, shape.head_size)
        self._keys_KBSH, self._values_KBSH = cache

    def run(self, library: AttentionLibrary | None, kind: StepKind) -> Callable[[], Tensor]:
        """A function that computes LAYERS layers on the same numbers, while this bench lives."""
        own = None
        if library is not None:
            widest = max(len(item.blocks) for item in self._work.items)
            room = None if kind is StepKind.PROMPT else OwnRoom(self._work.rows, widest)
            own = ADAPTERS[library](self._shape, room, self._device)
        attention = StepAttention(self._shape, self._device, own)
        attention.load(self._work)
        compute = partial(self._layers, attention.function(attention.loaded))
        self._computes.append(compute)
        return self._capture(compute)

    def _layers(self, attend: Attention) -> Tensor:
        for _ in range(LAYERS):
            o_RNH = attend(self._q_RNH, self._keys_KBSH, self._values_KBSH)
        return o_RNH

    @staticmethod
    def check(found: Callable[[], Tensor], expected: Callable[[], Tensor]) -> None:
        """Raise ValueError if a library computes something else."""
        right = expected().float()
        off = float((found().float() - right).abs().max() / right.abs().max())
        if not off <= TOLERANCE:
            raise ValueError(f"its result differs from ours by {off:.3g} of the largest value")

    @staticmethod
    def seconds(run: Callable[[], Tensor], clock: Callable[[], float]) -> float:
        """Seconds of a layer: the fastest of some runs."""
        found = []
        for _ in range(1 + REPEATS):
            began = clock()
            run()[0, 0, 0].item()  # waits for the device
            found.append(clock() - began)
        return min(found[1:]) / LAYERS


def _launched(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return compute


def _works(block_size: int, size: TrialSize) -> dict[StepKind, WorkList]:
    """A step of each kind. No sequence's own blocks are another's."""
    own, common = -(-size.tokens // block_size), list(range(size.common // block_size))

    def decoding(shared: list[int]) -> WorkList:
        at, seen = len(shared), len(shared) * block_size + size.tokens
        parts = [
            Rows([*shared, *range(at + i * own, at + (i + 1) * own)], i, 1, seen - 1)
            for i in range(size.streams)
        ]
        return build(parts, block_size, min_blocks_saved=1)

    chunk = Rows(range(-(-2 * size.chunk // block_size)), 0, size.chunk, size.chunk)
    return {
        StepKind.DECODE: decoding([]),
        StepKind.SHARED: decoding(common),
        StepKind.PROMPT: build([chunk], block_size),
    }
