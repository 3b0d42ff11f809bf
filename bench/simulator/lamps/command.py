"""`weftline bench simulate lamps`: Figure 3, the replay of a trace, and wrong predictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from bench.harness.results import write
from weftline_server.config import OFF_BY_DEFAULT

from .lengths import exactness
from .policies import POLICIES
from .replay import Arrivals, Outcome, replay
from .trace import drawn, read
from .unit_time import FIGURE_3, FIGURE_3_MEMORY, KEYS, schedule

# What of the server is off: it with its parts, without one of them, and with one that is off.
SERVER = {
    "app": OFF_BY_DEFAULT,
    **{
        f"app without {part}": OFF_BY_DEFAULT | {part}
        for part in ("tool_pauses", "memory_rank", "host_tier", "admission")
    },
    **{f"app also {part}": OFF_BY_DEFAULT - {part} for part in sorted(OFF_BY_DEFAULT)},
}
ERRORS = "0.05,0.1,0.3,0.5"
MIX_SIZE = 400


def main(words: Sequence[str]) -> int:
    """Run the replay with these arguments, and print and write its tables."""
    parser = argparse.ArgumentParser(prog="weftline bench simulate lamps", description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file of lengths (default: a drawn mix)")
    parser.add_argument("--rates", default="2,3,4", help="requests a second")
    parser.add_argument("--window", type=float, default=120.0, help="seconds of arrivals")
    parser.add_argument("--seeds", default="0", help="draws of the arrivals, and their mean")
    parser.add_argument("--errors", default=ERRORS, help="of predictions, at the highest rate")
    parser.add_argument("--kv-tokens", type=int, default=16_384, help="tokens of the KV cache")
    parser.add_argument("--host-kv-tokens", type=int, default=0, help="tokens of host memory")
    parser.add_argument("--policies", help="policies, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="20 seconds at the middle rate")
    parser.add_argument("--folder", type=Path, help="write the rows to this folder, as lamps.json")
    args = parser.parse_args(words)
    _figure_3()
    rates = [float(rate) for rate in args.rates.split(",")]
    window_s = args.window
    if args.quick:
        rates, window_s = [rates[len(rates) // 2]], 20.0
    agents = read(args.trace) if args.trace else [drawn(seed) for seed in range(MIX_SIZE)]
    lengths = exactness(agents)
    print(
        f"lengths by class: {lengths.count} outputs, {lengths.acc_5:.0%} within 5 tokens, "
        f"{lengths.acc_15:.0%} within 15, mean error {lengths.mean_error:.1f} tokens"
    )
    names = args.policies.split(",") if args.policies else [*POLICIES, *SERVER]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    rows: list[dict[str, object]] = []

    def one(name: str, load: Arrivals) -> None:
        served: list[float] = []
        for seed in seeds:
            found = _replayed(name, replace(load, seed=seed), args.kv_tokens, args.host_kv_tokens)
            row = {"policy": name, "rate": load.rate, "error": load.error, "seed": seed}
            row |= found.row
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            served.append(found.row["serving_s"])
            rows.append(row)
        if len(seeds) > 1:
            print(f"mean of {len(seeds)} seeds: serving_s {fmean(served):.2f}", flush=True)

    for rate in rates:
        for name in names:
            one(name, Arrivals(agents=agents, rate=rate, window_s=window_s))
    highest = Arrivals(agents=agents, rate=max(rates), window_s=window_s)
    for error in [] if args.quick else [float(error) for error in args.errors.split(",") if error]:
        for name in [name for name in ("LAMPS", "app") if name in names]:
            one(name, replace(highest, error=error))
    if args.folder is not None:
        told = {"window_s": window_s, "kv_tokens": args.kv_tokens, "trace": bool(args.trace)}
        write(args.folder, "lamps", {**told, "rows": rows})
    return 0


def _replayed(name: str, load: Arrivals, kv_tokens: int, host_tokens: int) -> Outcome:
    if name in SERVER:
        return replay(load, None, kv_tokens, host_tokens, SERVER[name])
    return replay(load, POLICIES[name], kv_tokens, host_tokens)


def _figure_3() -> None:
    """Print LAMPS's Figure 3 under each order."""
    for name, key in KEYS.items():
        found = schedule(FIGURE_3, FIGURE_3_MEMORY, key)
        ends = ", ".join(map(str, found.ends))
        print(f"figure 3  {name:13} {found.timeline:19} ends {ends}  mean {found.mean:.3f}")
