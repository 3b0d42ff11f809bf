"""Fits the simulator's latency profile to one measured workload, and foretells others with it.

A measured report of the harness holds, for every call, its tokens and when it began. `replay` runs
applications of the same shapes and sizes on one simulated engine, in the same order.
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

from .programs import Program, Ran, Step, perform
from .virtual import VirtualLoop, run
from .world import World, world

Report = Mapping[str, Any]
Array: TypeAlias = npt.NDArray[np.float64]
Runs = Callable[[World, "Case"], Awaitable[list[Ran]]]

SYSTEM = "weftline"
CALIBRATED_ON = "independent_chat"
PARTS = ("step_s", "fill_s", "attend_s", "sequence_s")  # of the profile, that are fitted
NUDGE = 0.05  # of a part's logarithm, to see what it does
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a workload as it was measured: the applications of a repetition, and the mean
    seconds of each over all repetitions; of that repetition's calls the mean seconds until their
    prompt was there, and after."""

    workload: str
    point: str
    apps: Sequence[Mapping[str, Any]]
    seconds: float
    overhead_s: float  # of an application, outside of its calls
    shared: int  # tokens of a common beginning
    warm: int = 0  # of these, what was in the cache before: instructions that never change
    delay_ms: int = 0  # between client and server: of the overhead, where the server runs the graph
    prefill_s: float = 0.0
    generate_s: float = 0.0

    @property
    def name(self) -> str:
        """Its texts are unlike those of any other."""
        return f"{self.workload} {self.point} {self.delay_ms}"


def cases(report: Report) -> Iterator[Case]:
    """The points of a report that have a replay, each at every round trip."""
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
            *(name, point, first["apps"], seconds, _overhead(first["apps"]), _shared(report)),
            warm=min((c["cached"] or 0 for c in told), default=0),
            delay_ms=delay,
            prefill_s=fmean(prefill) if told else 0.0,
            generate_s=fmean(c["seconds"] for c in told) - fmean(prefill) if told else 0.0,
        )


def timed(reports: Mapping[str, Report]) -> list[Case]:
    """The cases of all workloads' timed runs. What is there beside them, an ablation or a pass in
    float32, has the same point at another time or in another type."""
    found = (report for name, report in reports.items() if name == report["workload"])
    return [case for report in found for case in cases(report)]


def _overhead(apps: Sequence[Mapping[str, Any]]) -> float:
    """From the first call's start to the last one's end is the server's time; what is left of an
    application is the client's."""
    spans = [
        max(c["start"] + c["seconds"] for c in app["calls"]) - min(c["start"] for c in app["calls"])
        for app in apps
        if app["calls"]
    ]
    return max(0.0, fmean(app["seconds"] for app in apps) - fmean(spans)) if spans else 0.0


def _shared(report: Report) -> int:
    """Tokens that the most similar calls found in the cache: their common beginning."""
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
    """So many users, each from when he came on with as many applications as there are of his."""
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
    """A call as it was measured; `given` tokens of its prompt come from those that it reads."""
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
    """Mean seconds of a case's applications, and of their calls' two phases."""

    seconds: float
    prefill_s: float
    generate_s: float


def replay(found: Sequence[Case], config: SimulatedConfig) -> list[Replayed]:
    """Each case on one simulated engine, one behind another."""

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
    """The profile under which the simulator comes closest to what was measured.

    Gauss and Newton's method on the logarithms of the profile's parts and of the seconds of both
    phases, so that each counts by its relative error: what a prompt token costs and what a step
    that decodes does are told apart. A part that `config` leaves out stays out. Tokens in
    flight do: where all contexts are about as long, their cost cannot be told from that of their
    sequences. So it is with what a prompt attends to, as long as all prompts are as long; then it
    keeps its share of what a prompt costs.
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
    """What the simulator says of a point, beside what was measured."""

    workload: str
    point: str
    delay_ms: int
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Of the mean completion time."""
        return self.simulated_s / self.measured_s - 1


def foretell(found: Sequence[Case], config: SimulatedConfig) -> list[Foretold]:
    """All points with one profile."""
    said = replay(found, config)
    return [
        Foretold(c.workload, c.point, c.delay_ms, c.seconds, one.seconds)
        for c, one in zip(found, said, strict=True)
    ]


def start_from() -> SimulatedConfig:
    """A profile of about the right size for two cores.

    512 rows behind 2,566 tokens spent 0.6 s in the products and 0.8 s in attention: what a prompt
    token costs for each that it attends to is 0.0005 of what it costs by itself.
    """
    cost = StepCost(step_s=0.02, fill_s=0.0015, attend_s=0.7e-6, sequence_s=0.001)
    return SimulatedConfig(cost=cost, part_tokens=8, beside_tokens=96)
