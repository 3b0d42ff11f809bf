"""Simulates 64 servers that share 1,024 engines, beside one master that places all calls.

    weftline bench many_servers [--servers N] [--seconds S]

A million sessions come in an hour, and a balancer deals them out to the servers. The program runs
a minute or so of it. The results are the share of prompt tokens that were cached, the
largest load over the mean of servers and of engines, and the mean time until a first token.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace

from bench.harness import machine
from bench.harness.results import dated, stamp, write
from tests.simulator.many_servers import ManyServers, Placed, Simulation


def shown(found: Placed, seconds: float) -> dict[str, float]:
    """The figures of one simulation, which took so many seconds."""
    rounded = {name: round(value, 4) for name, value in asdict(found).items()}
    return {**rounded, "hits": round(found.hits, 4), "took_s": round(seconds, 1)}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=64)
    parser.add_argument("--engines", type=int, default=1024)
    parser.add_argument("--sessions-per-hour", type=float, default=1_000_000.0)
    parser.add_argument("--warm-s", type=float, default=30.0, help="seconds that are not counted")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds that are counted")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = ManyServers(
        servers=args.servers,
        engines=args.engines,
        sessions_per_hour=args.sessions_per_hour,
        warm_s=args.warm_s,
        counted_s=args.seconds,
        seed=args.seed,
    )
    about = machine.describe()
    report = {**stamp(about), "config": asdict(config)}
    for name, one in (("master", replace(config, servers=1)), ("servers", config)):
        began = time.monotonic()
        report[name] = shown(Simulation(one).run(), time.monotonic() - began)
        print(name, report[name], flush=True)
    report["hits_of_master"] = round(report["servers"]["hits"] / report["master"]["hits"], 4)
    print(write(dated(about), "many-servers", report).read_text())


if __name__ == "__main__":
    main()
