"""Replays recorded agent sessions on a simulated engine, under the server and under other systems.

    weftline bench replay --trace FILE --sessions 24 --turns 60 --pressures 1,2
    weftline bench replay --sessions 16 --turns 24 --seed 1

FILE holds rows of "sessions" (see bench/replay/trace.py); without --trace, sessions are drawn from
like distributions. Without --turns they are whole. All lengths and times are multiplied by --scale.
The pressure is what the running sessions need at their longest, over the tokens of the KV cache.
The bound is the sessions a minute of an engine that holds all contexts, and computes as many tokens
as Belady's optimum at that pressure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import machine
from bench.harness.results import stamp, write
from bench.replay import production
from bench.replay.trace import Recorded, drawn, read
from tests.simulator.world import TWO_CORES
from weftline.errors import WeftlineError

Row = dict[str, object]


def main() -> int:
    """The exit code: 0 when done, 1 with a sentence for a trace that cannot be read."""
    args = _arguments()
    try:
        rows = _sessions(args)
    except WeftlineError as error:
        print(f"weftline bench replay: {error}", file=sys.stderr)
        return 1
    if args.folder is not None:
        trace = args.trace.stem if args.trace else "drawn"
        told = {one: getattr(args, one) for one in ("scale", "at_once", "sessions", "turns")}
        write(args.folder, f"replay-{trace}", {**stamp(machine.describe()), **told, "rows": rows})
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
    parser.add_argument("--scale", type=float, default=1 / 64, help="factor of lengths and times")
    parser.add_argument("--at-once", type=int, default=8, help="sessions that run together")
    parser.add_argument("--pressures", default="1,2,4", help="separated by commas")
    parser.add_argument("--systems", help="separated by commas (default: all)")
    parser.add_argument("--folder", type=Path, help="write the rows to this folder")
    return parser.parse_args()


def _sessions(args: argparse.Namespace) -> list[Row]:
    count = args.skip + args.sessions
    found = (read(args.trace) if args.trace else drawn(count, args.seed))[args.skip : count]
    sessions = [Recorded(one.id, one.turns[: args.turns]).scaled(args.scale) for one in found]
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
