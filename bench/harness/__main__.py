"""`weftline bench NAME`: runs a workload of bench/workloads on several systems in turns.

NAME is a workload, or `all` of them. `table` writes the tables of docs/benchmarks.md and the README
from the newest overviews in bench/results; with --folder it first makes the overview of that
folder's summaries. `on-vllm` runs pairs of LangChain and weftline on one vLLM, goes on where it was
interrupted, and prints their table.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.harness import machine, probe, runner
from bench.harness.column import COLUMN, NAME, PAIRS
from bench.harness.fleet import Fleet
from bench.harness.results import RESULTS, dated
from bench.harness.servers import VLLM_PYTHON, Kind, Setup
from bench.harness.systems import IN_TEN_MINUTES, ON_NULL, SYSTEMS, USUAL
from bench.harness.workload import FULL, QUICK, SCALES, TINY, Scale, load, names
from weftline.errors import InvalidRequest, WeftlineError
from weftline_engine.own.models import DEFAULT_MODEL, ModelUnavailable, for_stream, resolve

INTERRUPTED = 130
TIME_IS_OVER = 3
NEXT_S = 60.0  # the least time that another workload takes, with its warm-up


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 when done, 1 after an error, 3 if the time of --within was too short for all
    turns, 130 if interrupted."""
    args = parser().parse_args(argv)
    # A shell starts background processes with SIGINT ignored; SIGTERM must still end this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end)
    try:
        if args.name == "table":
            from bench.report.overview import write_overview, write_tables

            if args.folder is not None:
                print(write_overview(args.folder))
            write_tables()
            return 0
        code, folder = asyncio.run(_run(args))
        if args.name == NAME:
            from bench.report.pairs import write_pairs

            path, pairs = write_pairs(folder)
            print(f"{pairs}\n\nwrote {path}")
        return code
    except (WeftlineError, ModelUnavailable) as error:
        print(f"weftline bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("weftline bench: interrupted; the results are marked partial", file=sys.stderr)
        return INTERRUPTED


def _end(number: int, frame: object) -> None:
    """Act as if Ctrl-C was pressed, once: a signal to a whole process group reaches this process a
    second time through its parent."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGINT)


def parser() -> argparse.ArgumentParser:
    """The options."""
    known = ("all", NAME, "table", *names())
    made = argparse.ArgumentParser(prog="weftline bench", description=__doc__)
    made.add_argument("name", choices=known, metavar="NAME", help=", ".join(known))
    _declare_what(made.add_argument_group("what to run").add_argument)
    _declare_how(made.add_argument_group("how to run it").add_argument)
    return made


def _declare_what(add: Callable[..., object]) -> None:
    """Add the options that choose workloads, systems and points."""
    add("--quick", action="store_true", help="small sizes, fewer points")
    add("--scale", choices=tuple(SCALES), help="sizes to run, instead of full or quick ones")
    add(
        "--names",
        help="with `all` or `on-vllm`: only these workloads, in this order, separated by commas",
    )
    systems = f"systems, separated by commas, the baseline first: {', '.join(SYSTEMS)}"
    add("--systems", help=systems, metavar="NAMES")
    add("--delays", metavar="MS", help="round trips, separated by commas")
    add("--only", default="", metavar="POINT", help="only points whose name begins with this")
    add("--first", action="store_true", help="only the first point, the headline's")
    add("--repeat", type=int, help=f"repetitions of each point (default of {NAME}: {PAIRS})")


def _declare_how(add: Callable[..., object]) -> None:
    """Add the options that choose the model, the machine's cores, the time and the folder."""
    add("--model", default=DEFAULT_MODEL, help="model, as for `weftline serve`")
    shape = "random weights of this shape, such as qwen3-0.6b, instead of the model's"
    add("--shape", metavar="NAME", help=shape)
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    dtype = "vLLM's type; auto: the one that multiplies faster here, by a probe of six seconds"
    add("--vllm-dtype", choices=("auto", *probe.DTYPES), default="auto", help=dtype)
    words = "words to add to every vLLM's command line, such as --vllm-arguments=--enforce-eager"
    add("--vllm-arguments", metavar="WORDS", default="", help=words)
    pool = "one KV pool of this size for all workloads; agents overflow it with longer roles"
    add("--kv-tokens", type=int, metavar="N", help=pool)
    add("--null", action="store_true", help="run the null engine, which checks only the harness")
    resume = "keep complete turns that were measured with the same code, machine and settings"
    add("--resume", action="store_true", help=resume)
    within = (
        "begin no turn that would end after this many seconds, and exit with 3 if turns are left; "
        "--resume continues from there"
    )
    add("--within", type=float, metavar="S", help=within)
    add("--cores", metavar="N,N", help="cores of all servers (default: all)")
    add("--client-cores", metavar="N,N", help="cores of the client (default: the servers')")
    folder = "folder of the results: summaries, with the raw runs in raw/"
    add("--folder", type=Path, help=folder)


async def _run(args: argparse.Namespace) -> tuple[int, Path]:
    """The exit code, and the folder of the results."""
    model = None if args.null else resolve(args.model, progress=for_stream())
    if args.shape and model is not None:
        from bench.harness.shape import random_model  # it needs torch

        model = random_model(args.shape, model)
    scale = scale_of(args)
    began = time.monotonic()
    until = began + (args.within or math.inf)
    cores = _cores(args.cores, "cores")
    client = _cores(args.client_cores or args.cores, "client-cores")
    about = machine.describe(cores, client)
    os.sched_setaffinity(0, client)
    # Numbers without a model say nothing about speed, so they are never stored as results.
    kept = Path("out/bench-null") if args.null else RESULTS
    folder = args.folder or dated(about, kept)
    if args.name == NAME and not args.folder:
        folder /= "-".join(filter(None, (NAME, args.shape)))

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    chosen = {name: systems_of(args, name, scale) for name in _workloads(args)}
    probed = _probe(args, model, chosen)
    if probed:
        say(f"vLLM in {probe.fastest(probed)}: {probed}")
    setup = _setup(args, model, scale, cores, probed)
    longest = 0.0
    async with Fleet(say) as fleet:
        for name, systems in chosen.items():
            if longest and time.monotonic() + max(longest, NEXT_S) > until:
                return _over(say), folder
            plan = runner.Plan(
                workload=name,
                systems=systems,
                setup=setup,
                scale=scale,
                selection=_selection(args, scale, name),
                folder=folder,
                vllm_probe_ms=probed,
                machine=about,
                resume=args.resume or args.name == NAME,
                until=until,
                say=say,
            )
            outcome = await runner.run(plan, fleet)
            say(f"wrote {outcome.path}")
            longest = max(longest, outcome.longest_s)
            if not outcome.complete:
                return _over(say), folder
    return 0, folder


def _setup(
    args: argparse.Namespace,
    model: Path | None,
    scale: Scale,
    cores: tuple[int, ...],
    probed: dict[str, float] | None,
) -> Setup:
    vllm_dtype = probe.fastest(probed) if probed else args.vllm_dtype
    return Setup(
        model=model,
        dtype=args.dtype,
        vllm_dtype=None if vllm_dtype == "auto" else vllm_dtype,
        kv_tokens=scale.kv_tokens,
        cores=cores,
        random_weights=args.shape is not None,
        vllm_arguments=tuple(shlex.split(args.vllm_arguments)),
    )


def _over(say: Callable[[str], None]) -> int:
    say("the time is over and the results are marked partial: --resume goes on")
    return TIME_IS_OVER


def _cores(names: str | None, option: str) -> tuple[int, ...]:
    """The cores of an option; without it, all cores that this process may use."""
    allowed = os.sched_getaffinity(0)
    if names is None:
        return tuple(sorted(allowed))
    words = names.split(",")
    chosen = {int(word) for word in words if word.strip().isdecimal()}
    if len(chosen) != len(words) or not chosen <= allowed:
        raise InvalidRequest(
            f"--{option} {names!r} is no list of cores: there are {', '.join(map(str, allowed))}"
        )
    return tuple(sorted(chosen))


def _workloads(args: argparse.Namespace) -> list[str]:
    """The workloads to run. Those with a KV pool of their own come last: each restarts the
    servers."""
    if args.name not in ("all", NAME):
        return [args.name]
    if not args.names:
        if args.name == NAME:
            return list(COLUMN)
        return sorted(names(), key=lambda name: load(name).kv_tokens is not None)
    chosen: list[str] = args.names.split(",")
    known = list(COLUMN) if args.name == NAME else names()
    for name in chosen:
        if name not in known:
            raise WeftlineError(f"there is no workload {name!r}: there are {', '.join(known)}")
    return chosen


def scale_of(args: argparse.Namespace) -> Scale:
    """The sizes of the options."""
    scale = SCALES[args.scale] if args.scale else _usual_scale(args)
    if args.kv_tokens is None:
        return scale
    return replace(scale, kv_tokens=args.kv_tokens, one_pool=True)


def _usual_scale(args: argparse.Namespace) -> Scale:
    if args.null:
        return TINY
    return QUICK if args.quick else FULL


def systems_of(args: argparse.Namespace, name: str, scale: Scale) -> tuple[str, ...]:
    """The systems of the options for the workload `name`. A client that limits how many
    applications run at once is left out of `on-vllm` where the column has no such client."""
    workload = load(name)
    if args.systems:
        chosen = tuple(args.systems.split(","))
        for one in chosen:
            if one not in SYSTEMS:
                raise WeftlineError(f"there is no system {one!r}: there are {', '.join(SYSTEMS)}")
        if args.name == NAME and not COLUMN[name].semaphores:
            return tuple(one for one in chosen if SYSTEMS[one].at_once is None)
        return chosen
    if args.name == NAME:
        return COLUMN[name].systems
    if args.null:
        return ON_NULL
    if scale.quick:
        return workload.quick_systems or workload.systems or IN_TEN_MINUTES
    return workload.systems or USUAL


def _probe(
    args: argparse.Namespace, model: Path | None, chosen: Mapping[str, Sequence[str]]
) -> dict[str, float] | None:
    """The times by which vLLM's dtype is chosen; None if it is given, or no vLLM is to run."""
    servers = {SYSTEMS[name].server for systems in chosen.values() for name in systems}
    asked = any(
        one.starts_vllm or Kind.VLLM in (one.kind, one.engine and one.engine.kind)
        for one in servers
    )
    if args.vllm_dtype != "auto" or model is None or not asked or not VLLM_PYTHON.exists():
        return None
    return probe.multiplications(model, dict(os.environ))


def _selection(args: argparse.Namespace, scale: Scale, name: str) -> runner.Selection:
    """The points of the options."""
    delays = tuple(map(int, args.delays.split(","))) if args.delays else None
    if args.name == NAME:
        row = COLUMN[name]
        return runner.Selection(
            repeats=args.repeat or PAIRS,
            delays_ms=delays or row.delays_ms,
            only=args.only or row.only,
            first=True,
        )
    return runner.Selection(
        repeats=args.repeat or scale.repeats,
        delays_ms=delays,
        only=args.only,
        first=args.first,
    )


if __name__ == "__main__":
    sys.exit(main())
