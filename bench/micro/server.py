"""Measures the cost of the server itself.

    make bench-server [ARGS="--sessions 1000 --folder out/server"]

    make bench-server ARGS="--only turns --against FOLDER"

It writes server.json below bench/results, with two parts. The first is the CPU time of the server
process per call, for many sessions at once on the null engine, and the number of values that are
wrong or missing. The second is the same with sessions on disk, in turns with a server that keeps
none. With `--against`, a folder with another checkout, there is a third: the CPU time of both
servers in turns, with and without a store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench.harness import machine
from bench.harness.metrics import spread
from bench.harness.results import dated, dumps, stamp, write
from bench.harness.servers import session_cpu_seconds
from weftline import AsyncClient
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.local import local_server

CALLS_PER_SESSION = 5
FEW_AT_ONCE = 64
CHAINS = 32  # at once, with and without a store
DURABLE_TURNS = 5
SLICES = 10  # of each of two servers that are measured in turns
SLICE = 100  # sessions of a slice


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
        "whole_path": lambda: [
            asyncio.run(whole_path(args.sessions, at_once))
            for at_once in (FEW_AT_ONCE, args.sessions)
        ],
        "durable": lambda: durable(args.sessions),
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
