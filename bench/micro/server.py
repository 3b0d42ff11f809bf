"""Measures the cost of the server itself.

    make bench-server [ARGS="--sessions 1000 --folder out/server"]

    make bench-server ARGS="--only turns --against FOLDER"

It writes server.json below bench/results, with five parts. The first two are curves: a placement
round over 16 engines by the length of the queue, and the addition of a call to a session by its
size. The third is the CPU time of the server process per call, for many sessions at once on the
null engine, and the number of values that are wrong or missing. The fourth is the same with
sessions on disk, in turns with a server that keeps none. The fifth is the time from the
end of a call to the start of the call that reads it. With `--against`, a folder with another
checkout, there is a sixth: the CPU time of both servers in turns, with and without a store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import httpx2

from bench.harness import machine
from bench.harness.metrics import spread
from bench.harness.results import dated, dumps, stamp, write
from bench.harness.servers import session_cpu_seconds
from bench.workloads._load import arriving, poisson
from weftline import AsyncClient
from weftline.contract.protocol import Call, InOut, Placeholder, Segment, Submit, to_wire
from weftline.local import local_server
from weftline_engine.api import FinishReason, Hints, Usage
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.schedule.placement.items import EngineLoad, Queued
from weftline_server.schedule.placement.round import place
from weftline_server.session import events as ev
from weftline_server.session.session import Session

CALLS_PER_SESSION = 5
FEW_AT_ONCE = 64
ENGINES = 16
CHAINS = 32  # at once, with and without a store
DURABLE_TURNS = 5
SLICES = 10  # of each of two servers that are measured in turns
SLICE = 100  # sessions of a slice
GAP_RATES = (20, 350, 700)  # calls a second
GAP_S = 10.0  # seconds in which they come
GAP_AT_ONCE = 64  # requests; a machine that cannot keep up gets them later, not all at once
LENGTHS = (10, 100, 1000, 10_000)
ROUNDS = 15

Curve = Mapping[int, Mapping[str, float]]


def placing() -> Mapping[str, Curve]:
    """Milliseconds of a round by the length of the queue: for calls that share forty prefixes, for
    calls that share nothing, and on engines that have room for hardly one call."""
    roomy, full = (
        [EngineLoad(name=f"e{i}", model="m", kv_tokens=size) for i in range(ENGINES)]
        for size in (60_000, 2_000)
    )
    ways = {"sharing": (40, roomy), "alone": (None, roomy), "full": (None, full)}
    found: dict[str, dict[int, Mapping[str, float]]] = {name: {} for name in ways}
    for name, (shared, loads) in ways.items():
        for length in LENGTHS:
            queue = _queue(length, shared)
            found[name][length] = _spread(partial(place, queue, loads, "app", 1.0), 1e3)
    return found


def _queue(length: int, shared: int | None) -> list[Queued]:
    """Calls of 500 groups; they share `shared` prefixes, or none."""
    rng = random.Random(0)
    return [
        Queued(
            id=str(i),
            model="m",
            kind="generate",
            queued=rng.random(),
            tokens=rng.randint(513, 1200),
            hints=Hints(group=f"g{i % 500}", work_left=rng.randint(1, 9999), depth=i % 4),
            prefixes=tuple((f"p{i % (shared or length)}-{k}", 32 << k) for k in range(5)),
        )
        for i in range(length)
    ]


def growing() -> Mapping[str, Curve]:
    """Microseconds to add one call to a session and to plan the change, by the session's size.

    The call comes after a chain that has ended, like an agent's. Or it comes beside calls that
    wait for the same variable, or after one of ten waiting chains.
    """
    shapes: dict[str, Callable[[int], str]] = {
        "after its last call": lambda number: f"v{number - 1}",
        "beside those that wait": lambda number: "topic",
        "below chains that wait": lambda number: f"v{number - 10}" if number >= 10 else "topic",
    }
    return {
        name: {size: _adding(size, reads, name == "after its last call") for size in LENGTHS}
        for name, reads in shapes.items()
    }


def _adding(size: int, reads: Callable[[int], str], runs: bool) -> dict[str, float]:
    session = Session("s", "t", 0.0)
    session.handle(ev.VariableSet(now=0.0, variable="v-1", value=""))
    for number in range(size):
        _add(session, number, reads(number), runs)
    numbers = iter(range(size, size + 50))

    def add() -> None:
        number = next(numbers)
        _add(session, number, reads(size - 1 if runs else number), False)

    return _spread(add, 1e6, 50)


def _add(session: Session, number: int, reads: str, runs: bool) -> None:
    task = task_of(f"c{number}", _call(f"v{number}", reads, f"{number} "))
    session.handle(ev.TasksSubmitted(now=0.0, tasks=(task,)))
    assert session.plan.depth[f"{task.id}/0"] == 0
    if runs:
        session.handle(ev.PrimitiveSent(now=0.0, primitive=f"{task.id}/0", engine="e"))
        used = Usage(prompt_tokens=1, cached_tokens=0, output_tokens=1, started=0.0, filled=0.0)
        ended = ev.PrimitiveFinished(
            now=0.0, primitive=f"{task.id}/0", reason=FinishReason.STOP, usage=used, value="x"
        )
        session.handle(ended)


def _spread(work: Callable[[], object], unit: float, times: int = ROUNDS) -> dict[str, float]:
    """The median and the quartiles of `times` rounds; `unit` is the number of units in a second."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * unit)
    return spread(found).to_json()


def _call(writes: str, reads: str | None, text: str) -> Call:
    prompt = [Segment(text=text), Segment(output="o")]
    holders = [Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=writes)]
    if reads is not None:
        prompt.insert(0, Segment(input="i"))
        holders.append(Placeholder(name="i", in_out=InOut.IN, semantic_var_id=reads))
    return Call(name="step", prompt=tuple(prompt), placeholders=tuple(holders))


async def whole_path(sessions: int, at_once: int, *arguments: str) -> dict[str, float | int]:
    """Run chains of calls on the echoing engine, a request a session, `at_once` of them
    together. The server gets `arguments` besides."""
    with local_server("--engine", "null", *arguments) as url:
        async with AsyncClient(url) as client:
            await _chains(client, at_once, at_once)  # warms the server up
            server = _server_pid()
            cpu, wall = session_cpu_seconds(server), time.perf_counter()
            right = await _chains(client, sessions, at_once)
            cpu, wall = session_cpu_seconds(server) - cpu, time.perf_counter() - wall
    calls = sessions * CALLS_PER_SESSION
    return {
        "sessions": sessions,
        "at_once": at_once,
        "calls": calls,
        "lost_or_wrong": sessions - right,
        "cpu_ms_per_call": round(cpu / calls * 1e3, 3),
        "calls_per_s": round(calls / wall, 1),
    }


async def _chains(client: AsyncClient, sessions: int, at_once: int) -> int:
    """Run a chain of calls in each of some sessions. Return how many ended with the right value."""
    room = asyncio.Semaphore(at_once)
    names = [f"v{i}" for i in range(CALLS_PER_SESSION)]

    async def one(number: int) -> bool:
        texts = [f"{number}-{i} " for i in range(CALLS_PER_SESSION)]
        calls = [_call(n, b, t) for n, b, t in zip(names, [None, *names], texts, strict=False)]
        async with room:
            answer = await client.run(calls, names[-1:])
        return answer.values[names[-1]] == "".join(texts)

    return sum(await asyncio.gather(*map(one, range(sessions))))


def in_turns(other: Path) -> dict[str, Any]:
    """CPU milliseconds of a call, of this checkout and of another one, without and with a store.
    The ratio is the median of the slices' ratios, with quartiles."""
    found = {}
    for durability in ("none", "full"):
        with TemporaryDirectory() as folder:
            found[durability] = asyncio.run(_in_turns(other, Path(folder), durability))
    return found


async def _in_turns(other: Path, folder: Path, durability: str) -> dict[str, Any]:
    trees = (other, Path(__file__).parents[2])
    rows: list[list[float]] = [[] for _ in trees]
    async with AsyncExitStack() as stack:
        servers: list[tuple[AsyncClient, int]] = []
        for number, tree in enumerate(trees):
            arguments = ["--engine", "null"]
            if durability != "none":
                arguments += ["--store", f"{folder}/{number}.db", "--durability", durability]
            parts = [str(tree / part) for part in ("client", "server", "engine", "kernels")]
            with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(parts)):
                url = stack.enter_context(local_server(*arguments))
            client = await stack.enter_async_context(AsyncClient(url))
            servers.append((client, _server_pid()))
            await _chains(client, SLICE, FEW_AT_ONCE)
        for turn in range(SLICES):
            for at in (0, 1) if turn % 2 else (1, 0):
                client, server = servers[at]
                cpu = session_cpu_seconds(server)
                right = await _chains(client, SLICE, FEW_AT_ONCE)
                assert right == SLICE, f"{SLICE - right} values are wrong"
                cpu = session_cpu_seconds(server) - cpu
                rows[at].append(cpu / (SLICE * CALLS_PER_SESSION) * 1e3)
    before, now = rows
    return {
        "slices": SLICES,
        "other_ms": spread(before).to_json(),
        "ms": spread(now).to_json(),
        "ratio": spread([b / a for a, b in zip(before, now, strict=True)]).to_json(),
    }


def gaps() -> list[dict[str, float]]:
    """Milliseconds from the end of a call on its engine to the start of the next one in its chain,
    for several numbers of calls a second that come at random times."""
    return [asyncio.run(_gaps(rate)) for rate in GAP_RATES]


async def _gaps(rate: int) -> dict[str, float]:
    times = poisson(random.Random(rate), rate / CALLS_PER_SESSION)
    at = list(takewhile(lambda one: one < GAP_S, times))
    found: list[float] = []
    wrong = 0
    # Without pauses: a timer ends up to 1 ms late, which would count as a gap.
    with local_server("--engine", "null") as url:
        async with httpx2.AsyncClient(base_url=url, timeout=60.0) as http:
            room = asyncio.Semaphore(GAP_AT_ONCE)

            async def one(number: int) -> None:
                nonlocal wrong
                names = [f"v{i}" for i in range(CALLS_PER_SESSION)]
                reads = [None, *names]
                calls = [_call(n, b, f"{number} ") for n, b in zip(names, reads, strict=False)]
                body = Submit(calls=tuple(calls), get=(names[-1],), close=True, graph=True)
                async with room:
                    answer = (await http.post("/v1/submit", json=to_wire(body))).json()
                steps = [call["steps"][0] for call in answer["graph"]["calls"]]
                wrong += answer["values"][names[-1]] != f"{number} " * CALLS_PER_SESSION
                found.extend(
                    1e3 * (after["started_s"] - before["finished_s"])
                    for before, after in pairwise(steps)
                )

            await one(0)  # warms the server up
            found.clear()
            await arriving(at, one)
    assert wrong == 0, f"{wrong} values are wrong"
    found.sort()
    return {
        "calls_per_s": rate,
        "gaps": len(found),
        "median_ms": round(median(found), 3),
        "p99_ms": round(found[len(found) * 99 // 100], 3),
    }


def durable(sessions: int) -> dict[str, Any]:
    """What `--store` costs: CPU of a call and calls a second, in turns with and without it."""
    found: dict[str, list[dict[str, float | int]]] = {"none": [], "full": [], "batch": []}
    for _ in range(DURABLE_TURNS):
        for name, rows in found.items():
            with TemporaryDirectory() as folder:
                store = ["--store", f"{folder}/sessions.db", "--durability", name]
                arguments = [] if name == "none" else store
                rows.append(asyncio.run(whole_path(sessions, CHAINS, *arguments)))
    middle = {
        name: {
            what: median(row[what] for row in rows) for what in ("cpu_ms_per_call", "calls_per_s")
        }
        for name, rows in found.items()
    }
    return {
        "chains_at_once": CHAINS,
        "turns": DURABLE_TURNS,
        "lost_or_wrong": sum(row["lost_or_wrong"] for rows in found.values() for row in rows),
        **middle,
        "cpu_over_none": _over(middle, "cpu_ms_per_call"),
        "rate_over_none": _over(middle, "calls_per_s"),
    }


def _over(middle: Mapping[str, Mapping[str, float]], what: str) -> dict[str, float]:
    none = middle["none"][what]
    return {name: round(row[what] / none, 2) for name, row in middle.items() if name != "none"}


def _server_pid() -> int:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return int(children[-1])


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--only", help="comma-separated parts (default: all)")
    parser.add_argument("--against", type=Path, help="another checkout, for the part `turns`")
    about = machine.describe()
    parser.add_argument("--folder", type=Path, default=dated(about))
    args = parser.parse_args()
    found: dict[str, Any] = stamp(about)
    parts: dict[str, Callable[[], Any]] = {
        "place_ms_by_queue": placing,
        "add_call_us_by_session": growing,
        "whole_path": lambda: [
            asyncio.run(whole_path(args.sessions, at_once))
            for at_once in (FEW_AT_ONCE, args.sessions)
        ],
        "durable": lambda: durable(args.sessions),
        "gaps": gaps,
    }
    if args.against is not None:
        parts["turns"] = lambda: in_turns(args.against.absolute())
    for name, measure in parts.items():
        if args.only and name not in args.only.split(","):
            continue
        found[name] = measure()
        print(f"{name}: {dumps(found[name])}", flush=True)
    print(write(args.folder, "server", found))


if __name__ == "__main__":
    main()
