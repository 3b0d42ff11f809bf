"""What the server itself costs: placing, growing a session, and the whole path with no model.

    python bench/bench_server.py [--sessions 1000]

Prints JSON. Three curves: a placement round over 16 engines by the length of the queue; adding one
call to a session by its size; and CPU seconds of the server process per call, many sessions at once
on the null engine, with how many values came back wrong or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path

from weftline import AsyncClient
from weftline.local import local_server
from weftline.protocol import Call, InOut, Placeholder, Segment
from weftline_engine.api import Hints
from weftline_server.graph.graph import Node
from weftline_server.schedule.policy import EngineLoad, Queued, place
from weftline_server.session import events as ev
from weftline_server.session.session import Session

CALLS_PER_SESSION = 5
AT_ONCE = 64  # requests in flight from the one client process


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    args = parser.parse_args()
    found = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "place_ms_by_queue": {n: round(placing(n), 2) for n in (10, 100, 1000, 10_000)},
        "add_call_us_by_session": {n: round(growing(n), 1) for n in (10, 100, 1000, 10_000)},
        "whole_path": asyncio.run(whole_path(args.sessions)),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
