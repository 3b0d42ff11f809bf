"""Defines a workload: a program, the points at which it runs, and the metrics that judge it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.harness.metrics import Metric
    from bench.harness.stage import Stage

FOLDER = Path(__file__).parents[1] / "workloads"


@dataclass(frozen=True, slots=True)
class Scale:
    """A factor for the papers' sizes, to fit the machine.

    `length` scales the tokens of prompts and outputs, `count` the number of chunks, users and
    applications. At (1, 1) the sizes are the paper's.
    """

    name: str
    length: float
    count: float
    repeats: int
    quick: bool = False  # whether to leave out the points that are not quick
    kv_tokens: int = 65_536  # of every engine's KV pool; the embedded engine's default
    one_pool: bool = False  # whether workloads with a pool of their own take `kv_tokens`, too

    def tokens(self, paper: float) -> int:
        """`paper` tokens at this scale, at least two."""
        return max(2, round(paper * self.length))

    def items(self, paper: float, least: int = 2) -> int:
        """`paper` items at this scale, at least `least`."""
        return max(least, round(paper * self.count))


# A document of 20,000 tokens in chunks of 1,024 becomes 8 chunks of 512 tokens with 25 to 50 out.
FULL = Scale("full", length=0.5, count=0.4, repeats=3)
HALF = Scale("half", length=0.25, count=0.25, repeats=2)
# All workloads share one pool size, so that each server starts once. It holds all that a workload
# has in flight, except for the agents, which are there to overflow it.
QUICK = Scale(
    "quick", length=0.125, count=0.2, repeats=1, quick=True, kv_tokens=4096, one_pool=True
)
# For the null engine, and to warm up.
TINY = Scale("tiny", length=0.05, count=0.1, repeats=1, quick=True, kv_tokens=512, one_pool=True)
PAPER = Scale("paper", length=1.0, count=1.0, repeats=3)  # for a GPU
SCALES = {scale.name: scale for scale in (FULL, HALF, QUICK, TINY, PAPER)}


@dataclass(frozen=True, slots=True)
class Point:
    """One bar, or one point of a curve: its name, and the `values` that the program reads.

    `delays_ms` are mean round trips between client and server; `x` is the place on the axis.
    """

    name: str
    values: Mapping[str, Any]
    x: float = 0.0
    delays_ms: tuple[int, ...] = (0,)
    quick: bool = True  # whether `--quick` includes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program with its points and metrics; the first of `metrics` is the headline.

    docs/benchmarks/workloads.md says what the paper has found, and why our result differs.

    `run(stage, point)` is the program. `prepare(stage)` runs once on the baseline and measures what
    the points need, such as a saturation rate. Where the program itself needs each answer before
    its next call, it `visits` the client.
    """

    title: str
    points: Callable[[Scale, Mapping[str, float]], Sequence[Point]]
    run: Callable[[Stage, Point], Awaitable[None]]
    metrics: Mapping[str, Metric]
    prepare: Callable[[Stage], Awaitable[Mapping[str, float]]] | None = None
    systems: tuple[str, ...] | None = None  # None: the usual ones
    quick_systems: tuple[str, ...] | None = None
    kv_tokens: Callable[[Scale], int] | None = None  # the pool of every engine; None: the scale's
    template: str | None = None  # the chat template of every engine; None: the model's own
    visits: bool = False


def names() -> list[str]:
    """The workloads of this checkout."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def load(name: str) -> Workload:
    """The workload of bench/workloads/NAME.py."""
    workload = import_module(f"bench.workloads.{name}").WORKLOAD
    assert isinstance(workload, Workload)
    return workload


def paper(figure: str) -> dict[str, Any]:
    """The parameters and results of one figure of the Parrot paper."""
    found: dict[str, Any] = json.loads((FOLDER / "parrot_workloads.json").read_text())[figure]
    return found
