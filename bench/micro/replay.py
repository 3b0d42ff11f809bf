"""Replays recorded agent sessions on a simulated engine, under the server and under other systems.

    weftline bench replay --trace FILE --sessions 24 --turns 60 --pressures 1,2
    weftline bench replay --sessions 16 --turns 24 --seed 1
    weftline bench replay --device H100 --shape 8b --pressures 1,2,4,8

FILE holds rows of "sessions" (see bench/replay/trace.py); without --trace, sessions are drawn from
like distributions. Without --turns they are whole. All lengths and times are multiplied by --scale.
The pressure is what the running sessions need at their longest, over the tokens of the KV cache.
The bound is the sessions a minute of an engine that holds all contexts, and computes as many tokens
as Belady's optimum at that pressure.

With --device the sessions have their full lengths, on a simulated GPU under vLLM's step times, and
the KV cache is what that GPU has left. As many sessions run together as make the pressure. LRU runs
behind semaphores in the client, too (`slots`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import machine
from bench.harness.results import stamp, write
from bench.replay import at_length, production
from bench.replay.trace import Recorded, drawn, read
from tests.simulator.world import TWO_CORES
from weftline.errors import WeftlineError

Row = dict[str, object]
# The arguments that a file of rows has.
TOLD = (
    "scale", "at_once", "sessions", "skip", "turns", "seed", "device", "shape", "host_gib",
)  # fmt: skip


def main() -> int:
    """The exit code: 0 when done, 1 with a sentence for a trace that cannot be read."""
    args = _arguments()
    try:
        rows = _at_length(args) if args.device else _sessions(args)
    except WeftlineError as error:
        print(f"weftline bench replay: {error}", file=sys.stderr)
        return 1
    if args.folder is not None:
        trace = args.trace.stem if args.trace else "drawn"
        told = {one: getattr(args, one) for one in TOLD}
        name = f"replay-{trace}" + (f"-{args.device}-{args.shape}" if args.device else "")
        write(args.folder, name, {**stamp(machine.describe()), **told, "rows": rows})
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="weftline bench replay", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--trace", type=Path, help="a file of sessions (default: drawn sessions)")
    parser.add_argument("--sessions", type=int, default=16, help="how many sessions to take")
    parser.add_argument("--skip", type=int, default=0, help="how many of the trace to leave out")
    parser.add_argument("--turns", type=int, help="how many requests to take of each")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn sessions")
    parser.add_argument(
        "--scale", type=float, help="factor of lengths and times (default: 1/64; 1/20 on a device)"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        help="sessions that run together (default: 8; by the pressures on a device)",
    )
    parser.add_argument("--device", choices=at_length.DEVICES, help="a simulated GPU")
    parser.add_argument("--shape", choices=at_length.SHAPES, default="8b", help="on the GPU")
    parser.add_argument(
        "--host-gib", type=float, default=128.0, help="host memory for copies, beside the GPU"
    )
    parser.add_argument("--pressures", default="1,2,4", help="separated by commas")
    parser.add_argument("--systems", help="separated by commas (default: all)")
    parser.add_argument("--folder", type=Path, help="write the rows to this folder")
    return parser.parse_args()


def _sessions(args: argparse.Namespace) -> list[Row]:
    args.scale, args.at_once = args.scale or 1 / 64, args.at_once or 8
    sessions = [one.scaled(args.scale) for one in _found(args)]
    print(_about(sessions, args.scale), flush=True)
    needed = args.at_once * statistics.mean(one.largest for one in sessions)
    # Every session must fit by itself.
    least = max(one.largest for one in sessions) + 64
    rows: list[Row] = []
    for pressure in map(float, args.pressures.split(",")):
        pool = max(least, round(needed / pressure))
        for row in _at(args, sessions, pool):
            rows.append({"pressure": pressure, "pool": pool, **row})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def _found(args: argparse.Namespace) -> list[Recorded]:
    count = args.skip + args.sessions
    found = (read(args.trace) if args.trace else drawn(count, args.seed))[args.skip : count]
    return [Recorded(one.id, one.turns[: args.turns]) for one in found]


def _at_length(args: argparse.Namespace) -> list[Row]:
    """The rows of all systems at the sessions' full lengths on a simulated GPU."""
    args.scale = args.scale or 1 / 20
    regime = at_length.Regime(
        shape=args.shape,
        device=args.device,
        scale=round(1 / args.scale),
        host_gib=args.host_gib,
    )
    count = args.skip + args.sessions
    found = read(args.trace) if args.trace else drawn(2 * count, args.seed)
    sessions = [Recorded(one.id, one.turns[: args.turns]) for one in regime.scaled(found)]
    sessions = sessions[args.skip : count]
    print(_about(sessions, args.scale), flush=True)
    pool = regime.config().kv_tokens
    pressures = [float(one) for one in args.pressures.split(",")]
    loads = [at_length.clients(sessions, pool, pressure) for pressure in pressures]
    systems = args.systems.split(",") if args.systems else at_length.SYSTEMS
    rows: list[Row] = []
    for at_once in [args.at_once] if args.at_once else loads:
        for one in at_length.rows(regime, sessions, systems, at_once):
            rows.append(one)
            print("  ".join(f"{key} {value}" for key, value in one.items()), flush=True)
    return rows


def _at(args: argparse.Namespace, sessions: Sequence[Recorded], pool: int) -> list[Row]:
    """The rows of all systems at one size of the KV cache, and of the bound."""
    names = args.systems.split(",") if args.systems else list(production.SYSTEMS)
    rows: list[Row] = []
    least, best = 1, sys.maxsize
    for name in names:
        outcome = production.replay(
            sessions, name, at_once=args.at_once, pool=pool, config=TWO_CORES
        )
        least, optimum = outcome.optimum()
        best = min(best, optimum)
        rows.append({"system": name, **outcome.row(optimum)})
    rate = production.bound(sessions, at_once=args.at_once, config=TWO_CORES, more=best / least)
    return [*rows, {"system": "bound", "sessions_per_minute": round(rate, 2)}]


def _about(sessions: Sequence[Recorded], scale: float) -> str:
    turns = [turn for one in sessions for turn in one.turns]
    prompts = sum(turn.input for turn in turns)
    return (
        f"{len(sessions)} sessions, {len(turns)} requests, {prompts:,} prompt tokens, "
        f"{sum(turn.shared for turn in turns) / prompts:.1%} shared; scale {scale:g}; median "
        f"prompt {statistics.median(turn.input for turn in turns):.0f}, answer "
        f"{statistics.median(turn.output for turn in turns):.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
