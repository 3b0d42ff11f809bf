"""Replays recorded agent sessions on a server, or on a simulated engine beside Belady's optimum.

    weftline bench replay --trace FILE --base-url http://127.0.0.1:8000/v1 --model NAME
    weftline bench replay --trace FILE --base-url http://127.0.0.1:8600 --graph
    weftline bench replay --trace FILE --simulate [--pressures 0.5,1,2,4]

FILE is a trace of kv-cache-tester (a file or a folder), of aiperf (.jsonl), or a file with rows of
"sessions"; without --trace, sessions are drawn from like distributions. All lengths and times are
multiplied by --scale. The pressure is what the running sessions need at their longest, over the
tokens of the KV cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.harness import machine
from bench.harness.results import stamp, write
from bench.replay import endpoint, simulated
from bench.replay.trace import Recorded, read, synthetic
from bench.simulator.calibration import start_from
from weftline import AsyncClient
from weftline.errors import WeftlineError

TIMEOUT_S = 3600.0
DRAWN = 48  # sessions without --trace


def main() -> int:
    """The exit code: 0 when done, 1 with a sentence for a trace that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="weftline bench replay", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--trace", type=Path, help="file or folder (default: drawn sessions)")
    parser.add_argument("--sessions", type=int, help="how many sessions to take")
    parser.add_argument("--turns", type=int, help="how many requests to take of each")
    parser.add_argument("--scale", type=float, default=1 / 64, help="factor of lengths and times")
    parser.add_argument("--at-once", type=int, default=8, help="sessions that run together")
    parser.add_argument("--simulate", action="store_true", help="on a simulated engine")
    parser.add_argument("--pressures", default="0.5,1,2,4", help="for --simulate")
    parser.add_argument("--systems", help="for --simulate, separated by commas (default: all)")
    parser.add_argument("--base-url", help="address of a server, with /v1 unless --graph")
    parser.add_argument("--model", default="default", help="the server's name of the model")
    parser.add_argument("--graph", action="store_true", help="send calls of sessions to weftline")
    parser.add_argument("--quick", action="store_true", help="16 sessions of at most 24 requests")
    parser.add_argument(
        "--folder", type=Path, help="write the rows to this folder, as replay-TRACE.json"
    )
    args = parser.parse_args()
    if not args.simulate and not args.base_url:
        parser.error("give --simulate, or the --base-url of a server")
    if args.quick:
        args.sessions, args.turns = args.sessions or 16, args.turns or 24
    try:
        sessions = _sessions(args)
    except WeftlineError as error:
        print(f"weftline bench replay: {error}", file=sys.stderr)
        return 1
    print(_about(sessions, args.scale), flush=True)
    rows = _simulated(args, sessions) if args.simulate else [asyncio.run(_served(args, sessions))]
    if args.folder is not None:
        told = {"scale": args.scale, "at_once": args.at_once, "sessions": len(sessions)}
        trace = args.trace.stem if args.trace else "drawn"
        write(
            args.folder,
            f"replay-{trace}",
            {**stamp(machine.describe()), **told, "trace": trace, "rows": rows},
        )
    return 0


def _sessions(args: argparse.Namespace) -> list[Recorded]:
    found = read(args.trace) if args.trace else synthetic(args.sessions or DRAWN)
    cut = [Recorded(one.id, one.turns[: args.turns]) for one in found[: args.sessions]]
    return [one.scaled(args.scale) for one in cut]


def _about(sessions: Sequence[Recorded], scale: float) -> str:
    turns = [turn for one in sessions for turn in one.turns]
    prompts = sum(turn.input for turn in turns)
    return (
        f"{len(sessions)} sessions, {len(turns)} requests, {prompts:,} prompt tokens, "
        f"{sum(turn.shared for turn in turns) / prompts:.1%} shared; scale {scale:g}; median "
        f"prompt {statistics.median(turn.input for turn in turns):.0f}, answer "
        f"{statistics.median(turn.output for turn in turns):.0f}"
    )


def _simulated(args: argparse.Namespace, sessions: Sequence[Recorded]) -> list[dict[str, object]]:
    names = args.systems.split(",") if args.systems else list(simulated.SYSTEMS)
    needed = args.at_once * statistics.mean(one.largest for one in sessions)
    # Every session must fit by itself.
    least = max(one.largest for one in sessions) + 64
    rows: list[dict[str, object]] = []
    for pressure in map(float, args.pressures.split(",")):
        pool = max(least, round(needed / pressure))
        for name in names:
            outcome = simulated.replay(
                sessions, name, at_once=args.at_once, pool=pool, config=start_from()
            )
            row = {"pressure": pressure, "pool": pool, "system": name, **outcome.row}
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            rows.append(row)
    return rows


async def _served(args: argparse.Namespace, sessions: Sequence[Recorded]) -> dict[str, object]:
    limits = httpx.Limits(max_connections=args.at_once)
    key = os.environ.get("WEFTLINE_API_KEY" if args.graph else "OPENAI_API_KEY")
    if args.graph:
        async with AsyncClient(args.base_url, api_key=key) as client:

            async def graph(session: str) -> endpoint.Client:
                return endpoint.GraphClient(await client.session().open(), args.model)

            outcome = await endpoint.replay(sessions, graph, args.at_once)
    else:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(
            base_url=args.base_url, headers=headers, limits=limits, timeout=TIMEOUT_S
        ) as http:

            async def plain(session: str) -> endpoint.Client:
                return endpoint.OpenAIClient(http, args.model, session)

            outcome = await endpoint.replay(sessions, plain, args.at_once)
    row = {"system": "graph" if args.graph else "openai", **outcome.row}
    print(json.dumps(row, indent=1), flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
