"""`weftline bench simulate lamps`: Figure 3, the replay of a trace, and wrong predictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.harness.results import write

from .lengths import exactness
from .policies import POLICIES
from .replay import Arrivals, Outcome, replay
from .trace import drawn, read
from .unit_time import FIGURE_3, FIGURE_3_MEMORY, KEYS, schedule

# The server with its parts, and without one of them.
SERVER = {
    "app": frozenset[str](),
    "app without tool_pauses": frozenset({"tool_pauses"}),
    "app without memory_rank": frozenset({"memory_rank"}),
    "app without admission": frozenset({"admission"}),
}
ERRORS = (0.05, 0.1, 0.3, 0.5)
MIX_SIZE = 400


def main(words: Sequence[str]) -> int:
    """Run the replay with these arguments, and print and write its tables."""
    parser = argparse.ArgumentParser(prog="weftline bench simulate lamps", description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file of lengths (default: a drawn mix)")
    parser.add_argument("--rates", default="2,3,4", help="requests a second")
    parser.add_argument("--window", type=float, default=120.0, help="seconds of arrivals")
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
    rows: list[dict[str, object]] = []

    def one(name: str, load: Arrivals) -> None:
        found = _replayed(name, load, args.kv_tokens, args.host_kv_tokens)
        row = {"policy": name, "rate": load.rate, "error": load.error, **found.row}
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)

    for rate in rates:
        load = Arrivals(agents=agents, rate=rate, window_s=window_s)
        for name in names:
            one(name, load)
    for error in () if args.quick else ERRORS:
        one("LAMPS", replace(load, error=error))
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
