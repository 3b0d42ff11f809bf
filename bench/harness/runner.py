"""Runs one workload on its systems, in turns, repetition by repetition, and writes the results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.harness import results, resume
from bench.harness.fleet import Fleet
from bench.harness.machine import busy_seconds
from bench.harness.metrics import repeated_share
from bench.harness.model import with_template
from bench.harness.runs import Run
from bench.harness.servers import Setup
from bench.harness.stage import Stage
from bench.harness.systems import BASELINE, ONCE, SYSTEMS, System, Way
from bench.harness.texts import Count, Texts, counter
from bench.harness.workload import TINY, Point, Scale, Workload, load

WARM_UP_SEED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The points to run, and how often. With `delays_ms` None a point has its own round trips."""

    repeats: int
    delays_ms: tuple[int, ...] | None = None
    only: str = ""  # run only points whose name begins with this
    first: bool = False  # run only the first point


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The workload to run, its servers, and the place of the results."""

    workload: str
    systems: Sequence[str]
    setup: Setup
    scale: Scale
    selection: Selection
    folder: Path
    machine: Mapping[str, Any]  # as machine.describe gives it
    vllm_probe_ms: Mapping[str, float] | None = None  # by which vLLM's dtype was chosen
    resume: bool = False  # keep earlier runs of the same code and settings
    until: float = math.inf  # begin no turn that would end later, by time.monotonic
    say: Callable[[str], None] = print

    @property
    def raw(self) -> Path:
        """Where the raw runs are."""
        return self.folder / results.RAW / f"{self.workload}.json"

    @property
    def path(self) -> Path:
        """Where the summary is."""
        return self.folder / f"{self.workload}.json"


@dataclass(frozen=True, slots=True)
class Turn:
    """One repetition of one point at one round trip, on `systems` in this order."""

    repeat: int
    point: Point
    delay_ms: int
    systems: Sequence[str]

    @property
    def where(self) -> tuple[int, str, int]:
        return self.repeat, self.point.name, self.delay_ms


@dataclass(slots=True)
class _Bench:
    """One workload in progress: its plan, its servers, and the runs so far."""

    plan: Plan
    workload: Workload
    fleet: Fleet
    count: Count
    runs: list[Run] = field(default_factory=list)
    prepared: Mapping[str, float] = field(default_factory=dict)
    repeated: float | None = None  # share of repeated tokens
    salt: int = 0
    longest_s: float = 0.0  # duration of the longest turn


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where the summary is, whether it is complete, and how long the longest turn took."""

    path: Path
    complete: bool
    longest_s: float


async def run(plan: Plan, fleet: Fleet) -> Outcome:
    """Run `plan`. Its files are marked partial until it is complete.

    Raises InvalidRequest or EngineUnavailable if a server does not come up.
    """
    workload, setup = load(plan.workload), plan.setup
    if workload.kv_tokens is not None:
        setup = replace(setup, kv_tokens=workload.kv_tokens(plan.scale))
    if workload.template is not None and setup.model is not None:
        setup = replace(setup, model=with_template(setup.model, workload.template))
    bench = _Bench(plan, workload, fleet, counter(setup.model))
    report: dict[str, Any] = {
        "workload": plan.workload,
        "title": workload.title,
        "began": time.strftime("%Y-%m-%d %H:%M:%S"),
        "partial": True,
        "scale": {"name": plan.scale.name, "length": plan.scale.length, "count": plan.scale.count},
        "model": None if setup.model is None else setup.model.name,
        "dtype": setup.dtype,
        "vllm_dtype": setup.vllm_dtype or setup.dtype,
        "vllm_probe_ms": plan.vllm_probe_ms,
        "kv_tokens": setup.kv_tokens,
        "machine": plan.machine,
        "systems": dict.fromkeys(plan.systems),
    }
    spent = _go_on(bench, report) if plan.resume else 0.0
    if spent and not any(_left(bench)):
        return Outcome(plan.path, True, 0.0)
    await fleet.need(setup, {name: SYSTEMS[name].server for name in plan.systems})
    report["systems"] = {name: _described(fleet, name) for name in plan.systems}
    clock = time.monotonic()

    def write(partial: bool) -> None:
        """Write what was measured so far."""
        report.update(
            partial=partial,
            seconds=round(spent + time.monotonic() - clock, 1),
            prepared=dict(bench.prepared),
            repeated_tokens=bench.repeated,
            runs=[run.to_json() for run in bench.runs],
        )
        results.write_runs(plan.folder, plan.workload, report)

    complete = await _run_all(bench, write)
    write(not complete)
    return Outcome(plan.path, complete, bench.longest_s)


def _go_on(bench: _Bench, report: dict[str, Any]) -> float:
    """Take over the complete turns of an earlier part, and return the seconds that they took, or 0.

    An incomplete turn is dropped: its systems would be compared across the pause.
    """
    kept, reason = resume.kept(bench.plan.raw, report)
    if kept is None:
        if reason:
            bench.plan.say(reason)
        return 0.0
    bench.prepared, bench.repeated = kept.prepared, kept.repeated
    bench.runs = list(kept.runs)
    broken = {turn.where for turn in _left(bench)}
    bench.runs = [r for r in bench.runs if (r.repeat, r.point, r.delay_ms) not in broken]
    report["began"] = kept.report["began"]
    bench.plan.say(f"{bench.plan.path.name} has {len(bench.runs)} runs, which are kept")
    return kept.seconds


def _described(fleet: Fleet, name: str) -> dict[str, Any]:
    system = SYSTEMS[name]
    server = fleet.server(system.server)
    assert server is not None
    words = [Path(w).name if "/" in w else w for w in server.command]
    return {
        "title": system.title,
        "way": system.way,
        "command": " ".join(words),
        "cores": server.cores(),
    }


def _points(bench: _Bench) -> list[Point]:
    plan = bench.plan
    points = [
        point
        for point in bench.workload.points(plan.scale, bench.prepared)
        if point.name.startswith(plan.selection.only) and (point.quick or not plan.scale.quick)
    ]
    return points[:1] if plan.selection.first else points


def _turns(bench: _Bench) -> Iterator[Turn]:
    """All turns of the plan, repetition by repetition."""
    plan = bench.plan
    places = [
        (p, delay) for p in _points(bench) for delay in plan.selection.delays_ms or p.delays_ms
    ]
    for repeat in range(plan.selection.repeats):
        for number, (point, delay) in enumerate(places):
            yield Turn(repeat, point, delay, _order(plan, repeat, first=number == 0))


def _left(bench: _Bench) -> Iterator[Turn]:
    """The turns that lack a run."""
    there = {(r.repeat, r.point, r.delay_ms, r.system) for r in bench.runs}
    for turn in _turns(bench):
        if not there.issuperset((*turn.where, system) for system in turn.systems):
            yield turn


async def _run_all(bench: _Bench, write: Callable[[bool], None]) -> bool:
    """Run the turns that are left; False if the time ran out first."""
    plan, workload = bench.plan, bench.workload
    if workload.prepare is not None and not bench.prepared:
        name = BASELINE if BASELINE in plan.systems else plan.systems[0]
        stage = _stage(bench, SYSTEMS[name], 0, WARM_UP_SEED, 0)
        bench.prepared = await workload.prepare(stage)
    left = list(_left(bench))
    await _warm_up(bench)
    bench.salt += len(bench.runs)  # so that no text of an earlier part is used again
    for number, turn in enumerate(left):
        began = time.monotonic()
        if bench.longest_s and began + bench.longest_s > plan.until:
            return False
        for name in turn.systems:
            await _once(bench, name, turn.point, turn.delay_ms, turn.repeat)
            write(True)
        bench.longest_s = max(bench.longest_s, time.monotonic() - began)
        more = len(left) - number - 1
        plan.say(f"{plan.workload}: {more} turns are left, of up to {bench.longest_s:.0f} s each")
    return True


async def _warm_up(bench: _Bench) -> None:
    """Run the first point once on every system, with texts of the smallest size.

    At their own size, 32 agents took over nine minutes before anything was measured.
    """
    point = bench.workload.points(TINY, bench.prepared)[0]
    for name in bench.plan.systems:
        bench.salt += 1
        stage = _stage(bench, SYSTEMS[name], 0, WARM_UP_SEED, bench.salt, TINY)
        await bench.workload.run(stage, point)


def _order(plan: Plan, repeat: int, first: bool) -> list[str]:
    """The order of the systems, reversed in every second repetition: no system always runs after
    the same one."""
    names = [
        name
        for number, name in enumerate(plan.systems)
        if first or number == 0 or not plan.scale.quick or name not in ONCE
    ]
    return names if repeat % 2 == 0 else names[::-1]


async def _once(bench: _Bench, name: str, point: Point, delay: int, repeat: int) -> None:
    """Run one repetition."""
    plan, system = bench.plan, SYSTEMS[name]
    bench.salt += 1
    stage = _stage(bench, system, delay, repeat, bench.salt)
    await bench.fleet.rest()
    told = await bench.fleet.phases(system.server)
    before, client = bench.fleet.cpu_seconds(), time.process_time()
    began, machine = time.perf_counter(), busy_seconds()
    await bench.workload.run(stage, point)
    seconds, client = time.perf_counter() - began, time.process_time() - client
    spent = {spec: cpu - before[spec] for spec, cpu in bench.fleet.cpu_seconds().items()}
    outside = busy_seconds() - machine - client - sum(spent.values())
    busy = spent.pop(system.server) + spent.pop(system.server.engine, 0.0)
    phases = await bench.fleet.phases(system.server)
    bench.runs.append(
        Run(
            system=name,
            point=point.name,
            x=point.x,
            delay_ms=delay,
            repeat=repeat,
            apps=stage.apps,
            client_cpu_s=client,
            server_cpu_s=busy,
            others_cpu_s=sum(spent.values()),
            load=max(0.0, outside / seconds),
            phases_s={name: s - told.get(name, 0.0) for name, s in phases.items()},
        )
    )
    # LangChain makes every call of this way itself, so the stage has seen all prompts.
    if bench.repeated is None and system.way is Way.CHAT_OPENAI:
        bench.repeated = repeated_share(stage.prompts, bench.count)
    failed = sum(app.error is not None for app in stage.apps)
    note = f", {failed} of {len(stage.apps)} failed" if failed else ""
    plan.say(
        f"{plan.workload} {point.name} +{delay} ms #{repeat + 1} {name}: {seconds:.2f} s{note}"
    )


def _stage(
    bench: _Bench, system: System, delay: int, seed: int, salt: int, scale: Scale | None = None
) -> Stage:
    texts = Texts(bench.count, salt)
    url = bench.fleet.url(system.server, delay)
    return Stage(system, url, texts, scale or bench.plan.scale, seed)
