"""Measures coding agents on vLLM within ten minutes of a GPU: alone, with host memory, and with us.

    PYTHONPATH=client:server:engine:kernels:. python -m bench.gpu.agents
    python -m bench.gpu.agents --dry-run --measured 2 --budget 60
    python -m bench.gpu.agents --shape qwen3-0.6b --agents 3 --lengths 0.02 --pauses 0.02 \
        --host-gib 0 --measured 20 --budget 900 --vllm-arguments=--enforce-eager

The second command needs no vLLM, and the third one runs a vLLM for CPUs, which has no copies in
host memory.

The systems are (a) vLLM, (b) vLLM with its copies in host memory, (c) vLLM behind the better one of
two semaphores in the client, and (d) weftline's scheduler inside vLLM, with the same host memory.
Two vLLMs are there at once, because three with an 8B model take 96 GB. The systems run in turns,
each for the same seconds on the same sessions with texts of its own. The KV cache is cut to a
quarter of what the sessions need.

Each run's row is printed and written when it ends. So what was measured stays if the machine goes
early. A run that no longer fits into the budget is left out, and its row says so. So is a system
whose server does not start; its row has the server's last words. Install vLLM as CONTRIBUTING says.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.gpu.results import RESULTS
from bench.harness import machine
from bench.harness.servers import Kind, ServerSpec, Setup, running
from bench.harness.shape import random_model
from bench.harness.systems import VLLM
from bench.harness.texts import Texts, counter
from bench.micro._agent_load import Timed, agents, ranked
from bench.replay.coding_sessions import CodingSession, of_drawn
from bench.replay.trace import drawn
from weftline.errors import WeftlineError
from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve
from weftline_engine.remote.vllm.config import offloading

Row = dict[str, Any]
LONGEST = 32_768  # tokens of a session; the shape's context has 40,960
FEWEST_TURNS = 16
PRESSURE = 4  # what the sessions need, over the KV cache
AT_ONCE = 2  # vLLMs on the GPU: of 32 GB each, with a KV cache of 99,000 tokens
# Beside a run: the sessions' texts are made, and the servers come to rest.
BESIDE_S = 5.0
ALONE, HOST, OURS = "vllm", "vllm and host memory", "weftline in vllm"


@dataclass(frozen=True, slots=True)
class Program:
    """A system: its server, and the size of the semaphore in its client, if it has one."""

    server: str
    slots: int | None = None

    @property
    def name(self) -> str:
        return self.server if self.slots is None else f"{self.server}, {self.slots} at once"


@dataclass(slots=True)
class Clock:
    """The seconds that the machine is there for, from now on."""

    budget_s: float
    began: float = field(default_factory=time.monotonic)

    def fits(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.began + self.budget_s


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 0 if every system has a row of figures."""
    args = _parser().parse_args(words)
    try:
        rows = asyncio.run(_measure(args, Clock(args.budget)))
    except WeftlineError as error:
        print(f"bench.gpu.agents: {error}", file=sys.stderr)
        return 1
    return int(any("left_out" in row for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--budget", type=float, default=570.0, help="seconds until the machine goes")
    add("--measured", type=float, default=75.0, help="seconds of a run")
    add("--agents", type=int, default=16, help="sessions that run together")
    add("--lengths", type=float, default=0.25, help="factor of all lengths")
    add("--pauses", type=float, default=0.25, help="factor of the seconds between two requests")
    add("--shape", default="llama3-8b", help="random weights of this shape")
    add("--model", default=DEFAULT_MODEL, help="whose tokenizer is taken")
    add("--host-gib", type=float, default=48.0, help="host memory of one vLLM; 0 is none")
    add("--vllm-arguments", default="", help="words for the command line of every vLLM")
    add("--seed", type=int, default=0, help="of the drawn sessions")
    add("--folder", type=Path, help="of the rows (default: bench/results/DATE-MACHINE)")
    add("--dry-run", action="store_true", help="servers on the null engine in place of vLLM")
    return parser


async def _measure(args: argparse.Namespace, clock: Clock) -> list[Row]:
    sessions = _sessions(args)
    peaks = [_peak(one) for one in sessions]
    kv_tokens = max(max(peaks) + 1024, round(sum(peaks) / PRESSURE))
    model = None if args.dry_run else _model(args)
    words = tuple(shlex.split(args.vllm_arguments))
    setup = Setup(model=model, kv_tokens=kv_tokens, random_weights=True, vllm_arguments=words)
    fit = max(1, round(kv_tokens / statistics.fmean(peaks)))
    rows: list[Row] = []
    specs = _specs(args)
    runs = [one for one in plan(fit) if one.server in specs]
    async with Servers(setup, specs) as servers:
        for number, one in enumerate(runs):
            texts, later = Texts(counter(model), args.seed + number), runs[number:]
            found = await _figures(args, clock, servers, sessions, texts, later)
            told = {} if "left_out" in found else {"kv_tokens": kv_tokens}
            rows.append({"system": one.name, **told, **found})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
            _write(args, rows)
    return rows


async def _figures(
    args: argparse.Namespace,
    clock: Clock,
    servers: Servers,
    sessions: Sequence[CodingSession],
    texts: Texts,
    runs: Sequence[Program],
) -> Row:
    """The figures of the first of the `runs`, or why it was left out."""
    one, takes_s = runs[0], args.measured + BESIDE_S
    if clock.fits(takes_s):
        url = await servers.of(one.server, [run.server for run in runs])
        if isinstance(url, WeftlineError):
            return {"left_out": str(url)}
        if clock.fits(takes_s):
            room = asyncio.Semaphore(one.slots) if one.slots else None
            found = await agents(url, sessions, texts.document, room, 0.0, args.measured)
            return figures(found, args.measured)
    return {"left_out": "the budget has ended"}


def plan(fit: int) -> list[Program]:
    """The runs in their order: the cheapest question first. `fit` sessions fit into the cache."""
    return [
        Program(ALONE),
        Program(OURS),
        Program(HOST),
        Program(ALONE, fit),
        Program(ALONE, fit + max(1, fit // 2)),
    ]


def figures(found: Sequence[Timed], seconds: float) -> Row:
    """What the agents got in these seconds. A request that was cut off at the end does not
    count."""
    good = [one for one in found if one.tokens]
    row: Row = {
        "requests_per_minute": round(60 * len(good) / seconds, 1),
        "failed": len(found) - len(good),
    }
    if good:
        took = [one.last - one.wanted for one in good]
        between = [(one.last - one.first) / (one.tokens - 1) for one in good if one.tokens > 1] or [
            0.0
        ]
        row |= {
            "mean_s": round(statistics.fmean(took), 2),
            "p90_s": round(ranked(took, 90), 2),
            "ttft_p90_s": round(ranked([one.ttft_s for one in good], 90), 2),
            "between_p99_ms": round(1e3 * ranked(between, 99)),
        }
    errors = [one.error for one in found if one.error]
    return row | ({"error": errors[0][:200]} if errors else {})


def _sessions(args: argparse.Namespace) -> list[CodingSession]:
    """Sessions that have work for the whole run, as far as they fit into the model's context."""
    made = of_drawn(drawn(8 * args.agents, args.seed))
    cut = [_cut(one.scaled(args.lengths, args.pauses, None)) for one in made]
    return [one for one in cut if len(one.turns) >= FEWEST_TURNS][: args.agents]


def _cut(session: CodingSession) -> CodingSession:
    """The turns before the one that would make the context longer than LONGEST."""
    count = next(
        (
            n
            for n in range(len(session.turns))
            if _peak(CodingSession(session.turns[: n + 1])) > LONGEST
        ),
        len(session.turns),
    )
    return CodingSession(session.turns[:count])


def _peak(session: CodingSession) -> int:
    return sum(sum(n for _, n in turn.pieces) + turn.output for turn in session.turns)


def _model(args: argparse.Namespace) -> Path:
    return random_model(args.shape, resolve(args.model, progress=for_stream()))


def _specs(args: argparse.Namespace) -> Mapping[str, ServerSpec]:
    if args.dry_run:
        null = ServerSpec(Kind.WEFTLINE)
        return dict.fromkeys((ALONE, HOST, OURS), null)
    host = ("--host-kv-gib", str(args.host_gib))
    specs = {ALONE: VLLM, OURS: ServerSpec(Kind.WEFTLINE, host, starts_vllm=True)}
    if args.host_gib:
        copies = ("--kv-transfer-config", json.dumps(offloading(args.host_gib)))
        specs[HOST] = replace(VLLM, arguments=copies)
    return specs


class Servers(AsyncExitStack):
    """The servers of the runs, of which AT_ONCE are there together."""

    def __init__(self, setup: Setup, specs: Mapping[str, ServerSpec]) -> None:
        super().__init__()
        self._setup = setup
        self._specs = specs
        self._started: dict[str, str | WeftlineError] = {}
        self._stops: dict[str, AsyncExitStack] = {}

    async def of(self, name: str, later: Sequence[str]) -> str | WeftlineError:
        """The address of a server, or why it did not start. Servers that no run of the `later` ones
        needs are stopped, and the next ones start together."""
        if name not in self._started:
            for old in self._stops.keys() - set(later):
                await self._stops.pop(old).aclose()
            wanted = [one for one in dict.fromkeys(later) if one not in self._started]
            await asyncio.gather(*map(self._start, wanted[: AT_ONCE - len(self._stops)]))
        return self._started[name]

    async def _start(self, name: str) -> None:
        log = f"gpu-agents-{name.replace(' ', '-')}"
        stack = await self.enter_async_context(AsyncExitStack())
        try:
            server = running(self._specs[name], self._setup, log)
            self._started[name] = (await stack.enter_async_context(server)).url
            self._stops[name] = stack
        except WeftlineError as error:
            self._started[name] = error


def _write(args: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write all rows so far."""
    known = machine.describe()
    name = (known.get("gpus") or ["cpu"])[0].lower().replace(" ", "-")
    folder: Path = args.folder or RESULTS / f"{datetime.date.today()}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    options = {key: str(value) for key, value in vars(args).items()}
    told = {"machine": known, "options": options, "rows": list(rows)}
    (folder / "agents-on-gpu.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
