"""Runs the server's own sessions, passes and policy on many simulated engines.

    weftline bench simulate --engines 4,16,64 --calls 10000
    weftline bench simulate lamps --rates 2,3,4

The engines' latency profile is fitted to the newest raw runs of independent chats. The error of the
mean completion time of the other measured workloads shows how far the profile can be trusted. Then
a mix of applications arrives at each number of engines, under both policies, in simulated time.
Without raw runs the profile is that of the newest simulation. `lamps` replays requests with tools
instead, on one engine.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.harness.results import RAW, RESULTS, stamp, write
from bench.report.page import find, newest
from bench.simulator.calibration import (
    CALIBRATED_ON,
    Case,
    Foretold,
    calibrate,
    foretell,
    start_from,
    timed,
)
from bench.simulator.lamps import command as lamps
from bench.simulator.sizes import simulate
from weftline.errors import InvalidRequest, WeftlineError
from weftline_engine.simulated import SimulatedConfig, StepCost

POLICIES = ("app", "request")


def main() -> int:
    """The exit code: 0 when done, 1 with a sentence if there is nothing to calibrate on."""
    if sys.argv[1:2] == ["lamps"]:
        return lamps.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="weftline bench simulate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--engines", default="4,16,64", help="engine counts, separated by commas")
    parser.add_argument("--calls", type=int, default=10_000, help="the fewest calls at each size")
    parser.add_argument("--load", type=float, default=0.6, help="share of an engine's capacity")
    parser.add_argument(
        "--policies", default=",".join(POLICIES), help="policies, separated by commas"
    )
    parser.add_argument("--folder", type=Path, help="folder of the measured results")
    args = parser.parse_args()
    # With 256 engines and 100,000 calls, nearly all objects stay alive. Collecting garbage after
    # every 700 new objects would take a quarter of the time.
    gc.set_threshold(100_000, 50, 1000)
    try:
        folder, _ = find(args.folder or RESULTS)
        config, report = _profile(folder)
    except WeftlineError as error:
        print(f"weftline bench simulate: {error}", file=sys.stderr)
        return 1
    report["load"] = args.load
    # A long simulation can be taken in parts: earlier results of the same profile are kept.
    sizes = _kept(folder / "simulation.json", report)
    for engines in map(int, args.engines.split(",")):
        for policy in args.policies.split(","):
            began = time.perf_counter()
            outcome = simulate(engines, args.calls, policy, config, args.load)
            took = time.perf_counter() - began
            sizes[engines, policy] = {**asdict(outcome), "took_s": round(took, 1)}
            print(
                f"{engines} engines, {policy}: {outcome.calls} calls, mean {outcome.mean_s:.2f} s, "
                f"p90 {outcome.p90_s:.2f} s, {outcome.cached:.0%} cached, engines "
                f"{outcome.busy:.0%} busy; took {took:.0f} s",
                flush=True,
            )
            rows = [sizes[size] for size in sorted(sizes)]
            write(folder, "simulation", {**report, "sizes": rows})
    return 0


def _profile(folder: Path) -> tuple[SimulatedConfig, dict[str, Any]]:
    """The engines' profile, and what a report says of it.

    It is fitted to the raw runs of `folder`. A checkout whose results were measured elsewhere has
    none; there it is the one of the newest simulation. Raises InvalidRequest without either.
    """
    raw = {path.stem: json.loads(path.read_text()) for path in (folder / RAW).glob("*.json")}
    if CALIBRATED_ON in raw:
        config, foretold = _calibrated(timed(raw))
        return config, {
            **stamp(raw[CALIBRATED_ON]["machine"]),
            "calibrated_on": CALIBRATED_ON,
            "cost_us": {name: 1e6 * value for name, value in asdict(config.cost).items()},
            "foretold": [{**asdict(one), "error": one.error} for one in foretold],
            "mean_error": mean_error(foretold),
        }
    for path in newest(folder, "simulation.json"):
        report = json.loads(path.read_text())
        print(f"no raw runs in {folder / RAW}: the profile is that of {path}", flush=True)
        cost = StepCost(**{name: value / 1e6 for name, value in report["cost_us"].items()})
        return replace(start_from(), cost=cost), report
    raise InvalidRequest(
        f"{folder / RAW} has no {CALIBRATED_ON}.json to calibrate on: run "
        f"`weftline bench {CALIBRATED_ON}` first"
    )


def _kept(path: Path, report: dict[str, Any]) -> dict[tuple[int, str], dict[str, Any]]:
    """The earlier results in `path`, if they have this profile and load."""
    old = json.loads(path.read_text()) if path.exists() else {}
    if old.get("load") != report["load"] or old.get("cost_us") is None:
        return {}
    if any(abs(old["cost_us"][k] - v) > 0.01 for k, v in report["cost_us"].items()):
        return {}
    return {(one["engines"], one["policy"]): one for one in old["sizes"]}


def _calibrated(found: list[Case]) -> tuple[SimulatedConfig, list[Foretold]]:
    config = calibrate([c for c in found if c.workload == CALIBRATED_ON], start_from())
    print(f"calibrated on {CALIBRATED_ON}: {json.dumps(asdict(config.cost))}", flush=True)
    foretold = foretell(found, config)
    for one in foretold:
        print(
            f"{one.workload}, {one.point} +{one.delay_ms} ms: measured {one.measured_s:.2f} s, "
            f"simulated {one.simulated_s:.2f} s, {one.error:+.0%}",
            flush=True,
        )
    print(f"mean error of the other workloads: {mean_error(foretold):.0%}", flush=True)
    return config, foretold


def mean_error(foretold: list[Foretold]) -> float:
    """The mean absolute error over the workloads that the profile is not fitted to."""
    errors = [abs(one.error) for one in foretold if one.workload != CALIBRATED_ON]
    return fmean(errors) if errors else 0.0


if __name__ == "__main__":
    sys.exit(main())
