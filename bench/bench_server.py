"""What the server itself costs, and what its admission and retention earn.

    make bench-server [ARGS="--sessions 1000 --agents 32 --out"]

Prints JSON, and with --out writes it below bench/results. Two curves: a placement round over 16
engines by the length of the queue, and adding a call to a session by its size. The CPU time of the
server process per call, many sessions at once on the null engine, with how many values came back
wrong or not at all. And in simulated time, many agents whose KV pool holds a third of them: ours,
LRU that admits everybody, and LRU behind a semaphore in the client, of the best size for its rate.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import machine
from bench.harness.results import RESULTS
from bench.simulator.agents import Agents, simulate
from weftline import AsyncClient
from weftline.local import local_server
from weftline.protocol import Call, InOut, Placeholder, Segment
from weftline_engine.api import Hints
from weftline_engine.simulated import SimulatedConfig
from weftline_server.graph.graph import Node
from weftline_server.schedule.policy import EngineLoad, Queued, place
from weftline_server.session import events as ev
from weftline_server.session.session import Session

CALLS_PER_SESSION = 5
AT_ONCE = 64  # requests in flight from the one client process
LENGTHS = (10, 100, 1000, 10_000)
# Sizes of the client's semaphore, as shares of the agents; between them the best one lies.
ROOMS = (0.25, 0.31, 0.34, 0.38, 0.41, 0.44, 0.5)


def placing(length: int, engines: int = 16) -> float:
    """Median milliseconds of a round over `engines`, for a queue of `length` calls."""
    rng = random.Random(0)
    queue = [
        Queued(
            id=str(i),
            model="m",
            queued=rng.random(),
            tokens=rng.randint(50, 900),
            hints=Hints(group=f"g{i % 500}", work_left=rng.randint(1, 9999), depth=i % 4),
            prefixes=tuple((f"p{i % 40}-{k}", 32 << k) for k in range(5)),
        )
        for i in range(length)
    ]
    loads = [EngineLoad(name=f"e{i}", model="m", kv_tokens=60_000) for i in range(engines)]
    return statistics.median(_seconds(lambda: place(queue, loads, "app", 1.0), 7)) * 1e3


def growing(size: int) -> float:
    """Median microseconds to add one call to a session of `size` calls in ten chains."""
    session = Session("s", "t", 0.0)
    nodes = tuple(_chained(i, i - 10) for i in range(size))
    session.handle(ev.CallsSubmitted(now=0.0, nodes=nodes))
    numbers = iter(range(size, size + 50))

    def add() -> None:
        number = next(numbers)
        node = _chained(number, number - size)
        session.handle(ev.CallsSubmitted(now=0.0, nodes=(node,)))

    return statistics.median(_seconds(add, 50)) * 1e6


def _seconds(work: object, times: int) -> list[float]:
    assert callable(work)
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def _chained(number: int, after: int) -> Node:
    call = _call(f"v{number}", None if after < 0 else f"v{after}", f"{number} ")
    return Node(f"c{number}", call)


def _call(writes: str, reads: str | None, text: str) -> Call:
    prompt = [Segment(text=text), Segment(output="o")]
    holders = [Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=writes)]
    if reads is not None:
        prompt.insert(0, Segment(input="i"))
        holders.append(Placeholder(name="i", in_out=InOut.IN, semantic_var_id=reads))
    return Call(name="step", prompt=tuple(prompt), placeholders=tuple(holders))


async def whole_path(sessions: int) -> dict[str, float | int]:
    """Chains of calls on the echoing engine, each session one request."""
    with local_server("--engine", "null") as url:
        async with AsyncClient(url) as client:
            room = asyncio.Semaphore(AT_ONCE)
            names = [f"v{i}" for i in range(CALLS_PER_SESSION)]
            before = [None, *names]

            async def one(number: int) -> bool:
                texts = [f"{number}-{i} " for i in range(CALLS_PER_SESSION)]
                calls = [_call(n, b, t) for n, b, t in zip(names, before, texts, strict=False)]
                async with room:
                    answer = await client.run(calls, names[-1:])
                return answer.values[names[-1]] == "".join(texts)

            await asyncio.gather(*map(one, range(AT_ONCE)))  # warm
            server = _server_pid()
            cpu, wall = _cpu_seconds(server), time.perf_counter()
            right = sum(await asyncio.gather(*map(one, range(sessions))))
            cpu, wall = _cpu_seconds(server) - cpu, time.perf_counter() - wall
    calls = sessions * CALLS_PER_SESSION
    return {
        "sessions": sessions,
        "calls": calls,
        "lost_or_wrong": sessions - right,
        "cpu_ms_per_call": round(cpu / calls * 1e3, 3),
        "calls_per_s": round(calls / wall, 1),
    }


def _server_pid() -> int:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return int(children[-1])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agents(count: int) -> dict[str, Any]:
    """Applications a minute of so many agents on a pool for a third of them, in three ways."""
    load = Agents(agents=count, applications=4 * count)
    ours = SimulatedConfig(kv_tokens=load.pool, part_tokens=10)
    plain = replace(ours, predicts=False)
    off = frozenset({"retention", "admission"})

    def row(load: Agents, config: SimulatedConfig, without: frozenset[str]) -> dict[str, float]:
        result = simulate(load, config, without)
        assert len(result.lasted) == load.applications, "an application was lost"
        return result.row

    by_room = {
        room: row(replace(load, at_once=room), plain, off)
        for room in sorted({max(1, round(count * share)) for share in ROOMS})
    }
    best = max(by_room, key=lambda room: by_room[room]["applications_per_minute"])
    found = {"ours": row(load, ours, frozenset()), "lru": row(load, plain, off)}
    found["lru_behind_best_semaphore"] = by_room[best]
    rates = {name: one["applications_per_minute"] for name, one in found.items()}
    return {
        "agents": count,
        "applications": load.applications,
        "pool_tokens": load.pool,
        **found,
        "best_semaphore": best,
        "rate_by_semaphore": {n: one["applications_per_minute"] for n, one in by_room.items()},
        "ours_to_lru": round(rates["ours"] / rates["lru"], 2),
        "ours_to_best_semaphore": round(rates["ours"] / rates["lru_behind_best_semaphore"], 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--out", action="store_true", help="write below bench/results as well")
    args = parser.parse_args()
    about = machine.describe()
    found = {
        "machine": about,
        "place_ms_by_queue": {n: round(placing(n), 2) for n in LENGTHS},
        "add_call_us_by_session": {n: round(growing(n), 1) for n in LENGTHS},
        "whole_path": asyncio.run(whole_path(args.sessions)),
        "agents": agents(args.agents),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if args.out:
        today = datetime.date.today().isoformat()
        folder = RESULTS / f"{today}-{machine.slug(about['cores'])}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
