"""Finds how many coding agents a system sustains within a limit of time.

    weftline bench agents --trace out/…/dataset.jsonl --scale 0.03 --ttft 5 --rate 5
    weftline bench agents --systems vllm,vllm:4,weftline-vllm --shape qwen3-0.6b --kv-tokens 16384
    weftline bench agents --url llamacpp=http://127.0.0.1:8080 --systems llamacpp,llamacpp:4
    weftline bench agents --trace out/…/dataset.jsonl --device H100 --systems LRU,LRU:8,weftline

The trace is a file of AIPerf's `synthesize agentic-code`; without one, sessions are drawn. The
limit holds at a percentile of all requests: the time to the first token, and the tokens a second
behind it. A system is a name, and behind a colon the requests that the client's semaphore lets
through. Every agent runs a session of its own. With --device the sessions have their full lengths
and pauses, on a simulated GPU beside an 8B model, in virtual time. The number of agents doubles up
to the first run beyond the limit, and is then searched for between the two.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bench.harness import machine
from bench.harness.fleet import Fleet
from bench.harness.results import stamp, write
from bench.harness.servers import ServerSpec, Setup
from bench.harness.shape import random_model
from bench.harness.systems import SYSTEMS, VLLM
from bench.harness.texts import Texts, counter
from bench.micro._agent_load import Limit, Timed, agents
from bench.micro._simulated_agents import NAMES as NAMES_SIMULATED
from bench.micro._simulated_agents import simulated
from bench.replay.at_length import DEVICES, Regime
from bench.replay.coding_sessions import CodingSession, of_drawn, read_aiperf
from bench.replay.trace import drawn
from weftline.errors import InvalidRequest, WeftlineError
from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve

Row = dict[str, Any]
NAMES: Mapping[str, ServerSpec] = {
    "vllm": VLLM,
    **{
        name: SYSTEMS[name].server for name in ("weftline", "weftline-vllm", "weftline-vllm-plugin")
    },
}


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 0 when done, 1 with a sentence where something is wrong."""
    args = _parser().parse_args(words)
    try:
        rows = _measure(args)
    except WeftlineError as error:
        print(f"weftline bench agents: {error}", file=sys.stderr)
        return 1
    if args.folder is not None:
        given = ((name, value) for name, value in vars(args).items() if value is not None)
        told = {
            name: value.name if isinstance(value, Path) else str(value) for name, value in given
        }
        name = f"agents-{args.device}-seed-{args.seed}" if args.device else "agents"
        write(args.folder, name, {**stamp(machine.describe()), "options": told, "rows": rows})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weftline bench agents", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--trace", type=Path, help="a dataset.jsonl of AIPerf (default: drawn sessions)")
    add("--scale", type=float, default=1 / 32, help="factor of all lengths")
    add("--think-scale", type=float, default=0.1, help="factor of the seconds between requests")
    add("--turns", type=int, default=8, help="requests of each agent")
    add("--ttft", type=float, default=5.0, help="most seconds to the first token")
    add("--rate", type=float, default=5.0, help="fewest tokens a second behind it")
    add("--percentile", type=float, default=95.0, help="of the requests, for each of the two")
    add("--most", type=int, default=64, help="agents that are tried at most")
    add("--ramp", type=float, default=0.5, help="seconds between the starts of two agents")
    add("--systems", default="vllm,vllm:2,vllm:4,weftline-vllm,weftline-vllm-plugin",
        help=f"of {', '.join(NAMES)} and those of --url")  # fmt: skip
    add("--url", action="append", default=[], metavar="NAME=URL", help="a server that runs")
    add("--null", action="store_true", help="the null engine in place of a model")
    add("--model", default=DEFAULT_MODEL, help="model, as for `weftline serve`")
    add("--shape", help="random weights of this shape, such as qwen3-0.6b, in place of the model's")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--kv-tokens", type=int, default=65_536, help="tokens of the KV cache")
    add("--device", choices=DEVICES, help="a simulated GPU, in place of servers")
    add("--seed", type=int, default=0, help="of the drawn sessions, and of their order")
    add("--folder", type=Path, help="write the rows to this folder")
    return parser


def _measure(args: argparse.Namespace) -> list[Row]:
    sessions = _sessions(args)
    limit = Limit(args.ttft, args.rate, args.percentile)
    if args.device:
        rows = _simulated(args, sessions, limit)
    else:
        rows = asyncio.run(_run(args, sessions, limit))
    ratios = summary(rows)
    for row in ratios:
        _print(row)
    return [*rows, *ratios]


async def _run(
    args: argparse.Namespace, sessions: Sequence[CodingSession], limit: Limit
) -> list[Row]:
    systems = [_system(word, args.url) for word in args.systems.split(",")]
    setup = _setup(args)
    count, salts = counter(setup.model), itertools.count(random.randrange(10_000))
    rows: list[Row] = []
    async with Fleet(lambda text: print(text, flush=True)) as fleet:
        for name, where, at_once in systems:
            if isinstance(where, ServerSpec):
                await fleet.need(setup, {name.partition(":")[0]: where})
            url = where if isinstance(where, str) else fleet.url(where, 0)
            tried: dict[int, bool] = {}
            while (number := next_count(tried, min(args.most, len(sessions)))) is not None:
                room = asyncio.Semaphore(at_once) if at_once else None
                document = cache(Texts(count, next(salts)).document)
                found = await agents(url, sessions[:number], document, room, args.ramp)
                rows.append(_noted(name, number, limit, found, tried))
                await fleet.rest()
    return rows


def _simulated(
    args: argparse.Namespace, sessions: Sequence[CodingSession], limit: Limit
) -> list[Row]:
    """The same search on a simulated GPU."""
    regime = Regime(shape="8b", device=args.device)
    rows: list[Row] = []
    for word in args.systems.split(","):
        name, slots = _slots(word, NAMES_SIMULATED)
        tried: dict[int, bool] = {}
        while (number := next_count(tried, min(args.most, len(sessions)))) is not None:
            found = simulated(regime, sessions[:number], name, slots, args.ramp)
            rows.append(_noted(word, number, limit, found, tried))
    return rows


def _noted(
    name: str, number: int, limit: Limit, found: Sequence[Timed], tried: dict[int, bool]
) -> Row:
    row = {"system": name, "agents": number, **limit.row(found)}
    tried[number] = row["within"]
    _print(row)
    return row


def next_count(tried: Mapping[int, bool], most: int) -> int | None:
    """How many agents to try next; None when the largest number within the limit is known to an
    eighth of it."""
    within = max((n for n, held in tried.items() if held), default=0)
    beyond = min((n for n, held in tried.items() if not held), default=None)
    if beyond is None:
        return min(2 * within or 1, most) if within < most else None
    if beyond - within <= max(1, within // 8):
        return None
    return (within + beyond) // 2


def summary(rows: Sequence[Row]) -> list[Row]:
    """The agents that each system sustains, over those of the same engine alone and with its best
    semaphore. The first system is that engine."""
    best: dict[str, int] = {}
    for row in rows:
        best[row["system"]] = max(best.get(row["system"], 0), row["agents"] * row["within"])
    alone = next(iter(best))
    gated = [found for name, found in best.items() if name.startswith(f"{alone}:")]
    others = {"over_alone": best[alone], "over_best_semaphore": max(gated, default=0)}
    made = []
    for name, found in best.items():
        over = {key: round(found / one, 2) if one else None for key, one in others.items()}
        made.append({"system": name, "sustained": found, **over})
    return made


def _system(word: str, urls: Sequence[str]) -> tuple[str, ServerSpec | str, int | None]:
    """A system's name, its server or address, and the size of the client's semaphore."""
    known: dict[str, ServerSpec | str] = {**NAMES}
    for one in urls:
        key, found, url = one.partition("=")
        if not found:
            raise InvalidRequest(f"--url {one!r} is no NAME=URL")
        known[key] = url
    name, slots = _slots(word, known)
    return word, known[name], slots


def _slots(word: str, known: Collection[str]) -> tuple[str, int | None]:
    """A system's name, and the size of the client's semaphore."""
    name, colon, size = word.partition(":")
    if name not in known or (colon and not (size.isdecimal() and int(size))):
        raise InvalidRequest(
            f"there is no system {word!r}: there are {', '.join(known)}, and NAME:N"
        )
    return name, int(size) if colon else None


def _sessions(args: argparse.Namespace) -> list[CodingSession]:
    found = read_aiperf(args.trace) if args.trace else of_drawn(drawn(args.most, args.seed))
    random.Random(args.seed).shuffle(found)
    lengths, times = (1 / 20, 1.0) if args.device else (args.scale, args.think_scale)
    made = [one.scaled(lengths, times, args.turns) for one in found]
    first = [sum(n for _, n in one.turns[0].pieces) for one in made]
    print(
        f"{len(made)} sessions, {statistics.mean(len(one.turns) for one in made):.1f} requests; "
        f"median first prompt {statistics.median(first):.0f} tokens",
        flush=True,
    )
    return made


def _setup(args: argparse.Namespace) -> Setup:
    model = None if args.null else resolve(args.model, progress=for_stream())
    if model is not None and args.shape is not None:
        model = random_model(args.shape, model)
    return Setup(
        model=model,
        dtype=args.dtype,
        kv_tokens=args.kv_tokens,
        random_weights=args.shape is not None,
    )


def _print(row: Row) -> None:
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
