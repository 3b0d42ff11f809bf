"""Fits the simulator's latency profile to one measured workload, and predicts others with it.

The raw runs of a workload hold the tokens and the start of every call. `replay` runs applications
of the same shapes and sizes on one simulated engine, in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weftline_engine.simulated import SimulatedConfig, StepCost
from weftline_engine.virtual_time import VirtualLoop, run

from .programs import Program, Ran, Step, perform
from .world import World, world

Report = Mapping[str, Any]
Array: TypeAlias = npt.NDArray[np.float64]
Runs = Callable[[World, "Case"], Awaitable[list[Ran]]]

SYSTEM = "weftline"
CALIBRATED_ON = "independent_chat"
PARTS = ("step_s", "fill_s", "attend_s", "sequence_s")  # the fitted parts of the profile
NUDGE = 0.05  # added to a part's logarithm to measure its slope
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A measured point of a workload.

    `apps` are the applications of the first repetition, `seconds` their mean over all repetitions.
    `prefill_s` and `generate_s` are means over the calls of the first repetition.
    """

    workload: str
    point: str
    apps: Sequence[Mapping[str, Any]]
    seconds: float
    overhead_s: float  # seconds of an application outside of its calls
    shared: int  # tokens of the common prefix
    warm: int = 0  # of these, the tokens that were cached before: instructions that never change
    delay_ms: int = 0  # a round trip; it is a part of the overhead, as the server runs the graph
    prefill_s: float = 0.0
    generate_s: float = 0.0

    @property
    def name(self) -> str:
        """The seed of its texts, different from that of every other case."""
        return f"{self.workload} {self.point} {self.delay_ms}"


def cases(report: Report) -> Iterator[Case]:
    """The points of a report of raw runs that have a replay, at each round trip."""
    name = report["workload"]
    runs = [r for r in report["runs"] if r["system"] == SYSTEM and r["cache"] == "cold"]
    for point, delay in dict.fromkeys((r["point"], r["delay_ms"]) for r in runs):
        found = [r for r in runs if (r["point"], r["delay_ms"]) == (point, delay)]
        if name not in REPLAYS or not found or any(a["error"] for r in found for a in r["apps"]):
            continue
        first = min(found, key=lambda r: int(r["repeat"]))
        seconds = fmean(app["seconds"] for r in found for app in r["apps"])
        told = [c for a in first["apps"] for c in a["calls"] if c["queue_s"] is not None]
        prefill = [c["queue_s"] + c["fill_s"] for c in told]
        yield Case(
            name,
            point,
            first["apps"],
            seconds,
            _overhead(first["apps"]),
            _shared(report),
            warm=min((c["cached"] or 0 for c in told), default=0),
            delay_ms=delay,
            prefill_s=fmean(prefill) if told else 0.0,
            generate_s=fmean(c["seconds"] for c in told) - fmean(prefill) if told else 0.0,
        )


def timed(reports: Mapping[str, Report]) -> list[Case]:
    """The cases of all workloads' own reports. An ablation or a check of equal answers is left out:
    it has the same points, measured at another time or in another dtype."""
    found = (report for name, report in reports.items() if name == report["workload"])
    return [case for report in found for case in cases(report)]


def _overhead(apps: Sequence[Mapping[str, Any]]) -> float:
    """The mean seconds of an application outside its calls: all but the time from the start of
    its first call to the end of its last."""
    spans = [
        max(c["start"] + c["seconds"] for c in app["calls"]) - min(c["start"] for c in app["calls"])
        for app in apps
        if app["calls"]
    ]
    return max(0.0, fmean(app["seconds"] for app in apps) - fmean(spans)) if spans else 0.0


def _shared(report: Report) -> int:
    """The tokens of the calls' common prefix: the median of the cached tokens."""
    found = [
        call["cached"] or 0
        for run in report["runs"]
        if run["system"] == SYSTEM
        for app in run["apps"]
        for call in app.get("calls", ())
    ]
    return int(sorted(found)[len(found) // 2]) if found else 0


async def _when_they_came(made: World, case: Case) -> list[Ran]:
    made_of = PROGRAMS[case.workload]
    origin = min(app["start"] for app in case.apps)

    async def one(number: int, app: Mapping[str, Any]) -> Ran:
        await asyncio.sleep(app["start"] - origin)
        return await perform(made, made_of(case, app), f"{case.name} {number}", phases=True)

    return list(await asyncio.gather(*(one(i, app) for i, app in enumerate(case.apps))))


async def _turn_by_turn(made: World, case: Case) -> list[Ran]:
    """Replay users that run their applications one after another, from each one's arrival."""
    users = int(case.point.split()[0])
    origin = min(app["start"] for app in case.apps)
    found: list[Ran] = []

    async def user(number: int) -> None:
        await asyncio.sleep(case.apps[number]["start"] - origin)
        for app in case.apps[number::users]:
            program = PROGRAMS[case.workload](case, app)
            seed = f"{case.name} {number} {app['start']}"
            found.append(await perform(made, program, seed, phases=True))
            await asyncio.sleep(case.overhead_s)

    await asyncio.gather(*map(user, range(users)))
    return found


def _calls(app: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(app["calls"], key=lambda call: float(call["start"] + call["seconds"]))


def _chain(case: Case, app: Mapping[str, Any]) -> Program:
    calls = _calls(app)
    steps = [_step(case, calls[0])]
    late = case.point != "text first"
    for i, (before, call) in enumerate(pairwise(calls)):
        steps.append(_step(case, call, before["output"], (i,), late))
    return steps


def _map_reduce(case: Case, app: Mapping[str, Any]) -> Program:
    *each, last = _calls(app)
    given = sum(call["output"] for call in each)
    return [*(_step(case, c) for c in each), _step(case, last, given, tuple(range(len(each))))]


def _single(case: Case, app: Mapping[str, Any]) -> Program:
    return [_step(case, app["calls"][0])]


def _step(
    case: Case,
    call: Mapping[str, Any],
    given: int = 0,
    reads: tuple[int, ...] = (),
    late: bool = False,
) -> Step:
    """A measured call as a step. Of its prompt, `given` tokens are the outputs that it reads."""
    text = call["prompt"] - given
    shared = max(0, min(case.shared, text - 1))
    return Step(
        own=text - shared,
        output=call["output"],
        reads=reads,
        late_text=late,
        role=case.name,
        shared=shared,
    )


PROGRAMS: Mapping[str, Callable[[Case, Mapping[str, Any]], Program]] = {
    "independent_chat": _single,
    "chain_summary": _chain,
    "many_chains": _chain,
    "map_reduce": _map_reduce,
    "copilot": _single,
}
REPLAYS: Mapping[str, Runs] = {
    "independent_chat": _turn_by_turn,
    "chain_summary": _when_they_came,
    "many_chains": _when_they_came,
    "map_reduce": _when_they_came,
    "copilot": _when_they_came,
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """The mean seconds of a case's applications, and of the two phases of their calls."""

    seconds: float
    prefill_s: float
    generate_s: float


def replay(found: Sequence[Case], config: SimulatedConfig) -> list[Replayed]:
    """Run the cases on one simulated engine, one after another."""

    async def main(loop: VirtualLoop) -> list[Replayed]:
        async with world(loop, config) as made:
            return [await _replayed(made, c) for c in found]

    return run(main)


async def _replayed(made: World, case: Case) -> Replayed:
    if case.warm:
        step = Step(own=1, output=1, role=case.name, shared=case.warm)
        await perform(made, [step], f"{case.name} warm")
    return _mean(case, await REPLAYS[case.workload](made, case))


def _mean(case: Case, ran: Sequence[Ran]) -> Replayed:
    return Replayed(
        fmean(one.seconds for one in ran) + case.overhead_s,
        fmean(seconds for one in ran for seconds in one.prefill_s),
        fmean(seconds for one in ran for seconds in one.generate_s),
    )


def calibrate(
    found: Sequence[Case], config: SimulatedConfig, rounds: int = ROUNDS
) -> SimulatedConfig:
    """Fit the profile to the measured cases, starting from `config`.

    This is the Gauss-Newton method on the logarithms of the profile's parts and of the seconds of
    both phases. Logarithms weigh relative errors, and two phases separate the cost of a prompt
    token from that of a decoding step. A part that is 0 in `config` stays 0. Tokens in flight are
    left out: where all contexts have about the same length, their cost cannot be separated from
    that of their sequences. The same holds for attention where all prompts have the same length;
    there it keeps its share of a prompt's cost.
    """
    names = [part for part in PARTS if getattr(config.cost, part) > 0]
    measured = np.log([seconds for c in found for seconds in (c.prefill_s, c.generate_s)])

    def profile(parts: Array) -> SimulatedConfig:
        named = dict(zip(names, np.exp(parts).tolist(), strict=True))
        return replace(config, cost=replace(config.cost, **named))

    def logs(parts: Array) -> Array:
        made = replay(found, profile(parts))
        return np.log([seconds for one in made for seconds in (one.prefill_s, one.generate_s)])

    parts = np.log([getattr(config.cost, part) for part in names])
    for _ in range(rounds):
        now = logs(parts)
        slopes = np.stack([(logs(parts + row) - now) / NUDGE for row in NUDGE * np.eye(len(names))])
        change = np.linalg.lstsq(slopes.T, measured - now, rcond=0.02)[0]
        parts = parts + np.clip(change, -1.0, 1.0)
    return profile(parts)


@dataclass(frozen=True, slots=True)
class Foretold:
    """The simulated and the measured seconds of a point."""

    workload: str
    point: str
    delay_ms: int
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """The relative error of the mean completion time."""
        return self.simulated_s / self.measured_s - 1


def foretell(found: Sequence[Case], config: SimulatedConfig) -> list[Foretold]:
    """Predict all cases with one profile."""
    said = replay(found, config)
    return [
        Foretold(c.workload, c.point, c.delay_ms, c.seconds, one.seconds)
        for c, one in zip(found, said, strict=True)
    ]


def start_from() -> SimulatedConfig:
    """A profile of the right order of magnitude for two cores.

    512 rows after 2,566 tokens spent 0.6 s in matrix products and 0.8 s in attention. So each token
    that a prompt token attends to costs 0.0005 of the prompt token itself.
    """
    cost = StepCost(step_s=0.02, fill_s=0.0015, attend_s=0.7e-6, sequence_s=0.001)
    return SimulatedConfig(cost=cost, part_tokens=8, beside_tokens=96)
