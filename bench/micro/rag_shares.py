"""Shares of a RAG application's CPU time: the graph, the communication, and the engines.

    python -m bench.micro.rag_shares [--tasks 4]

Runs the application `advanced` of `bench rag_graph` as one request, task after task, with the real
MiniLM. CPU seconds of each process come from /proc, so other load on the machine hardly counts. The
graph is what the server computes for a submit before anything runs: lowering, checks, passes and
the session. It is measured in this process, on the same submits. The rest of the server's time is
communication: HTTP, frames to and from the engines, events, prompts. The design allows 3 and 6 %.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx

from bench.micro import _rag_ours
from bench.micro._rag_apps import App, Task
from bench.micro.rag_graph import Settings, Texts, served
from bench.simulator.world import serving
from weftline_engine.api import Engine
from weftline_engine.null import NullConfig, NullEngine
from weftline_engine.retrieval.local import LocalItems
from weftline_engine.retrieval.memory import MemoryTable, WordBackend
from weftline_engine.retrieval.stores import StoreBackend

TICKS = os.sysconf("SC_CLK_TCK")


def below(parent: int) -> Iterator[tuple[int, str, float]]:
    """The processes that a process has started, with their command lines and CPU seconds."""
    children: dict[int, list[tuple[int, str, float]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text()
            except OSError:
                continue  # it has ended
            seconds = (int(fields[11]) + int(fields[12])) / TICKS
            children.setdefault(int(fields[1]), []).append((int(folder.name), command, seconds))
    waiting = [parent]
    while waiting:
        for one in children.get(waiting.pop(), []):
            yield one
            waiting.append(one[0])


def of_engines(model: str, tasks: Sequence[Task]) -> tuple[float, float]:
    """CPU seconds of the server and of all its engines, for the tasks one after another."""
    with served(Settings(model=model)) as url:
        first, *counted = tasks
        before: dict[int, float] = {}
        with httpx.Client(base_url=url, timeout=600) as http:
            for number, task in enumerate([first, *counted]):
                if number == 1:
                    before = {id: seconds for id, _, seconds in below(os.getpid())}
                answer = http.post("/v1/submit", content=_rag_ours.body(task))
                answer.raise_for_status()
        server = engines = 0.0
        for id, command, seconds in below(os.getpid()):
            spent = seconds - before.get(id, 0.0)
            if "serve" in command.split("\0"):
                server += spent
            else:
                engines += spent
    return server, engines


async def of_graph(tasks: Sequence[Task]) -> float:
    """The median CPU seconds of the graph of one task."""
    engines: dict[str, Callable[[], Engine]] = {
        "null": lambda: NullEngine(NullConfig()),
        "minilm": lambda: LocalItems(WordBackend("minilm")),
        _rag_ours.STORE: lambda: LocalItems(StoreBackend(_rag_ours.STORE, MemoryTable())),
    }
    found = []
    async with serving(asyncio.get_running_loop(), engines) as made:
        for task in tasks:
            session = made.driver.open("t")
            began = time.thread_time()
            await made.driver.submit(session, _rag_ours.submit(task))
            found.append(time.thread_time() - began)
            made.driver.close(session)
    return statistics.median(found)


def main() -> None:
    """Print the seconds and the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=Settings().model)
    parser.add_argument("--tasks", type=int, default=4)
    args = parser.parse_args()
    texts = Texts()
    tasks = [texts.task(App.ADVANCED, number) for number in range(args.tasks + 1)]
    server, engines = of_engines(args.model, tasks)
    graph = asyncio.run(of_graph(tasks)) * args.tasks
    whole = server + engines
    print(f"{args.tasks} tasks, load {os.getloadavg()[0]:.1f}: {whole:.2f} s of CPU")
    for name, seconds in (
        ("graph", graph),
        ("communication", server - graph),
        ("engines", engines),
    ):
        print(f"{name:14} {seconds:7.3f} s {seconds / whole:7.2%}")


if __name__ == "__main__":
    main()
