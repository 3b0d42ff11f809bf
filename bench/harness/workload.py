"""What a workload is: a program, the points at which it is run, and the metrics that judge it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.harness.metrics import Metric
    from bench.harness.stage import Stage

FOLDER = Path(__file__).parents[1] / "workloads"


@dataclass(frozen=True, slots=True)
class Scale:
    """The papers' sizes, made smaller for the machine: `length` scales token counts of prompts and
    outputs, `count` how many chunks, users and applications there are. (1, 1) is the paper.
    """

    name: str
    length: float
    count: float
    repeats: int
    quick: bool = False  # leaves out the points that are not
    kv_tokens: int = 65_536  # the pool of every engine: the embedded one's own default

    def tokens(self, paper: float) -> int:
        """`paper` tokens at this scale; never none."""
        return max(2, round(paper * self.length))

    def items(self, paper: float, least: int = 2) -> int:
        """`paper` things at this scale."""
        return max(least, round(paper * self.count))


# A document of 20,000 tokens in chunks of 1,024 becomes 8 chunks of 512 tokens with 25 to 50 out.
FULL = Scale("full", length=0.5, count=0.4, repeats=3)
HALF = Scale("half", length=0.25, count=0.25, repeats=2)
# One pool for all workloads, so that each server starts once: all that one of them has in flight
# fits, but for the agents that are there to overflow it.
QUICK = Scale("quick", length=0.125, count=0.2, repeats=1, quick=True, kv_tokens=4096)
# For the null engine, and to warm up.
TINY = Scale("tiny", length=0.05, count=0.1, repeats=1, quick=True, kv_tokens=512)
PAPER = Scale("paper", length=1.0, count=1.0, repeats=3)  # for a GPU
SCALES = {scale.name: scale for scale in (FULL, HALF, QUICK, TINY, PAPER)}


@dataclass(frozen=True, slots=True)
class Point:
    """One bar, or one point of a curve: its name, and what the program reads of it.

    `delays_ms` are the mean round trips between client and server; `x` is the place on the axis.
    """

    name: str
    values: Mapping[str, Any]
    x: float = 0.0
    delays_ms: tuple[int, ...] = (0,)
    quick: bool = True  # part of `--quick`, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`run(stage, point)` is the program; `prepare(stage)` measures once, on the baseline, what the
    points need (a saturation rate). The first of `metrics` is the headline.
    """

    title: str
    figure: str  # of the Parrot paper, or why it is here
    paper: str  # the paper's own result, in words
    difference: str  # why ours is another, in a sentence
    points: Callable[[Scale, Mapping[str, float]], Sequence[Point]]
    run: Callable[[Stage, Point], Awaitable[None]]
    metrics: Mapping[str, Metric]
    target: Mapping[str, float] = field(default_factory=dict)  # ratio to reach, by round trip
    beside: Mapping[str, float] = field(default_factory=dict)  # and at the same time, by metric
    prepare: Callable[[Stage], Awaitable[Mapping[str, float]]] | None = None
    systems: tuple[str, ...] | None = None  # None: the usual ones
    quick_systems: tuple[str, ...] | None = None
    kv_tokens: Callable[[Scale], int] | None = None  # the pool of every engine; None: the scale's


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
