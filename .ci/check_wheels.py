"""Builds the three wheels, installs them into an empty venv, and runs the README's programs there.

The venv's programs find no compiler in PATH: the wheel's own kernels must serve.

The llama-index wheel is installed without its dependencies, to save their download: what is checked
of it is that it builds, and that it leaves the namespace packages to others.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
_PROJECTS = (".", "integrations/langchain", "integrations/llamaindex")
_ANNOUNCEMENT = re.compile(r"weftline serves on (http://\S+)")
_PROGRAM = re.compile(r"<!-- run: (\w+) -->\s*```python\n(.*?)```", re.DOTALL)

_KERNELS = {"x86_64": {"avx2", "avx512", "avx512_bf16"}, "aarch64": {"neon"}}


def main() -> int:
    """Exit code 0 if every step passed."""
    with tempfile.TemporaryDirectory(prefix="weftline-wheels-") as folder:
        work = Path(folder)
        wheels = _build(work / "dist")
        _check_contents(wheels)
        python = _install(work / "venv", wheels)
        _check_kernels(python)
        programs = _PROGRAM.findall((ROOT / "README.md").read_text(encoding="utf-8"))
        if not programs:
            print("SKIP README.md has no marked programs yet")
            return 0
        with _server(python, work) as url:
            failed = max(_run(python, work, url, name, text) for name, text in programs)
            _look(python, work, url)
            return failed


def _build(target: Path) -> list[Path]:
    for project in _PROJECTS:
        with _timed(f"build {project}"):
            _call(sys.executable, "-m", "build", "--wheel", "--outdir", target, ROOT / project)
    return sorted(target.glob("*.whl"))


def _check_contents(wheels: list[Path]) -> None:
    names = {wheel.name.split("-")[0]: wheel for wheel in wheels}
    assert names.keys() == {"weftline", "langchain_weftline", "llama_index_llms_weftline"}, names
    with zipfile.ZipFile(names["weftline"]) as wheel:
        kernels = {Path(name).stem for name in wheel.namelist() if name.endswith(".so")}
        packages = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}
        typed = {name.split("/")[0] for name in wheel.namelist() if name.endswith("/py.typed")}
    ours = {"weftline", "weftline_server", "weftline_engine", "weftline_kernels"}
    assert packages == typed == ours, (packages, typed)
    machine = platform.machine()
    assert kernels == _KERNELS[machine], kernels
    with zipfile.ZipFile(names["weftline"]) as wheel:
        assert any(name.endswith("/libgomp.so.1") for name in wheel.namelist()), "OpenMP is missing"
    assert names["weftline"].stem.endswith(machine), "a wheel with kernels is of one platform"
    with zipfile.ZipFile(names["llama_index_llms_weftline"]) as wheel:
        shared = {"llama_index/__init__.py", "llama_index/llms/__init__.py"}
        assert not shared & set(wheel.namelist()), "llama_index is a namespace of many packages"
    print("PASS the wheels hold what they should")


def _install(folder: Path, wheels: list[Path]) -> Path:
    python = folder / "bin" / "python"
    root, langchain, llama = (
        next(wheel for wheel in wheels if wheel.name.startswith(start))
        for start in ("weftline-", "langchain_weftline-", "llama_index_llms_weftline-")
    )
    # This interpreter's pip, for the venv needs none; what the programs import is compiled then.
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile")
    locked = ROOT / "deploy" / "locked" / "server.txt"
    with _timed("install"):
        venv.create(folder, with_pip=False)
        _call(*pip, "--require-hashes", "-r", locked)
        pip = (*pip, "-c", ROOT / "constraints.txt")
        _call(*pip, f"weftline[server,engine] @ {root.as_uri()}", langchain)
        _call(*pip, "--no-deps", llama)
    return python


def _check_kernels(python: Path) -> None:
    """doctor finds the wheel's kernels where there is no compiler."""
    command = [python.parent / "weftline", "doctor", "--json"]
    done = subprocess.run(command, env=_alone(python), capture_output=True, text=True, check=True)
    kernels = json.loads(done.stdout)["kernels"]
    assert kernels["origin"] == "prebuilt", kernels
    print(f"PASS without a compiler: {kernels['path']} kernels, {kernels['why']}", flush=True)


@contextmanager
def _server(python: Path, work: Path) -> Iterator[str]:
    """`weftline serve` of the wheel on a free port; CHECK_ENGINE=null saves the model."""
    engine = os.environ.get("CHECK_ENGINE", "torch")
    command = [python.parent / "weftline", "serve", "--engine", engine, "--port", "0"]
    log = work / "server.log"
    with log.open("w") as errors:
        server = subprocess.Popen(
            command,
            cwd=work,
            env=_alone(python),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if match := _ANNOUNCEMENT.search(line):
                said = log.read_text()
                assert engine != "torch" or " kernels, prebuilt: " in said, said
                yield match[1]
                return
        said = log.read_text()
        raise SystemExit(f"{said}\nweftline serve ended with {server.wait()} before it served")
    finally:
        server.terminate()
        server.wait(timeout=60)


def _run(python: Path, work: Path, url: str, name: str, program: str) -> int:
    path = work / f"readme_{name}.py"
    path.write_text(program, encoding="utf-8")
    environment = _environment() | {"WEFTLINE_BASE_URL": url}
    with _timed(f"README's {name} program"):
        done = subprocess.run([python, path], cwd=work, env=environment, timeout=600)
    print(f"{'FAIL' if done.returncode else 'PASS'} README's {name} program", flush=True)
    return 1 if done.returncode else 0


def _look(python: Path, work: Path, url: str) -> None:
    """The programs' sessions are found, the wheel has every file of the page, and trace prints."""
    with urlopen(f"{url}/v1/sessions") as response:
        sessions = json.load(response)["sessions"]
    assert any(row["calls"] > 1 and not row["error"] for row in sessions), sessions
    asked = ["index.html"]
    for name in asked:
        with urlopen(f"{url}/ui/{'' if name == 'index.html' else name}") as response:
            text = response.read().decode()
        names = re.findall(r'(?:href|src|from|import) ?=? ?"(?:\./)?([\w-]+\.(?:js|css))"', text)
        asked += [one for one in dict.fromkeys(names) if one not in asked]
    assert len(asked) > 10, asked
    chart = ["--output", "last.svg"]
    command = [python.parent / "weftline", "trace", "--last", *chart, "--base-url", url]
    environment = _alone(python)
    subprocess.run(command, cwd=work, env=environment, stdout=subprocess.DEVNULL, check=True)
    assert (work / "last.svg").is_file()
    print(f"PASS {len(sessions)} sessions are found; the page has {len(asked)} files", flush=True)


def _environment() -> dict[str, str]:
    """The caller's, without what would let the programs see this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _alone(python: Path) -> dict[str, str]:
    """The environment of a machine with nothing but the venv: no gcc, no cc, no WEFTLINE_ISA."""
    found = {name: value for name, value in _environment().items() if name != "WEFTLINE_ISA"}
    return found | {"PATH": str(python.parent)}


def _call(*command: str | Path) -> None:
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nfailed: {' '.join(map(str, command))}")


@contextmanager
def _timed(step: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{step}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
