"""What runs without being asked: the hooks of pre-commit, and the workflow, run what CI runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def commands(verb: str) -> list[str]:
    """The commands of a verb of the Makefile, without those that install."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "-o", "install", verb, "RERUNS="],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if not line.startswith("#")]


def test_the_hooks_run_what_make_check_runs() -> None:
    """Each command of `make check` is the entry of one hook, in the same order, and no hook runs
    anything else. None gets names of files, so that a hook sees what CI sees.
    """
    [local] = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = [hook["entry"] for hook in local["hooks"]]
    checks = commands("check")
    assert sorted(entries) == sorted(checks) and len(checks) == 6
    assert all(hook["pass_filenames"] is False for hook in local["hooks"])


def test_the_workflow_runs_ci() -> None:
    """One job runs `.ci/run`, and another one the gate on coverage, on the oldest Python that we
    support, with pip's cache. Neither may write to the repository. Behind the first, on a push, a
    job that installs nothing pushes the tags of releases.
    """
    workflow = read(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    runs = {}
    tags = workflow["jobs"].pop("tags")
    assert (tags["needs"], tags["if"]) == ("run", "github.event_name == 'push'")
    for name, job in workflow["jobs"].items():
        assert job["runs-on"].startswith("ubuntu-") and job["timeout-minutes"] <= 120
        runs[name] = [step["run"] for step in job["steps"] if "run" in step][-1]
        [python] = [one for one in job["steps"] if "setup-python" in one.get("uses", "")]
        assert python["with"]["python-version"] == "3.11" and python["with"]["cache"] == "pip"
    assert runs == {"run": ".ci/run", "coverage": "make coverage"}


OWN = ["install", "check", "test", "gpu-compile", "test-clients", "test-faults", "test-cluster"]
FURTHER = ["test-vllm", "test-llama", "test-page", "test-langchain-ranges"]
FURTHER += ["test-accelerated-graphs", "test-vllm-previous", "test-long", "test-ray"]


def ci(folder: Path, **environment: str) -> tuple[int, list[str], str]:
    """What `.ci/run` returns, the verbs that it made, without those in the background, and what it
    said. Its programs do nothing, but for the verb `FAILS`."""
    for name in ("chromium", "bwrap", "make"):
        made = 'echo "$2" >>"$MADE"; [ "$2" != "$FAILS" ]' if name == "make" else ":"
        (folder / name).write_text(f"#!/bin/sh\n{made}\n")
        (folder / name).chmod(0o755)
    known = {"PATH": f"{folder}:/usr/bin:/bin", "MADE": str(folder / "made"), "FAILS": ""}
    script = [str(ROOT / ".ci/run")]
    done = subprocess.run(script, env=known | environment, capture_output=True, text=True)
    made = [one for one in (folder / "made").read_text().split() if one[:8] != "install-"]
    return done.returncode, made, done.stdout


def test_ci_runs_every_stage(tmp_path: Path) -> None:
    """What the suites need in the background is waited for, once."""
    code, made, said = ci(tmp_path)
    assert (code, made) == (0, OWN + FURTHER), said
    assert said.count("== make install-bench, in the background") == 1
    assert "== install-llama 0 s, in the background" in said and "left out" not in said


def test_ci_leaves_out_what_would_end_too_late(tmp_path: Path) -> None:
    """On a slow machine the product's own suites run, and the summary names the others."""
    code, made, said = ci(tmp_path, RUN_S="0")
    assert (code, made) == (0, OWN)
    assert re.findall(r"^== (\S+) left out$", said, re.M) == FURTHER


def test_ci_ends_with_the_first_stage_that_fails(tmp_path: Path) -> None:
    """So do what is installed in the background, and the stages that are not always run."""
    for fails, last in (("check", "check"), ("install-llama", "test-vllm"), ("test-ray",) * 2):
        (tmp_path / "made").unlink(missing_ok=True)
        code, made, said = ci(tmp_path, FAILS=fails)
        assert (code, made[-1]) == (1, last) and f"== make {fails} failed" in said


def test_coverage_has_a_gate_for_each_part() -> None:
    """`make coverage` fails below the share of lines that each part had when it was measured."""
    gate = "\n".join(commands("coverage")[-2:])
    found = dict(re.findall(r"(\w+):(\d+)", gate))
    assert set(found) == {"server", "client", "integrations"}
    assert "--fail-under" in gate and all(70 <= int(least) <= 100 for least in found.values())


def test_what_has_exact_versions_is_kept_up_to_date() -> None:
    """Dependabot looks after the Python packages of all three distributions, and after actions."""
    watched = {one["package-ecosystem"]: one for one in read(".github/dependabot.yml")["updates"]}
    assert set(watched) == {"pip", "github-actions"}
    folders = [folder.strip("/") or "." for folder in watched["pip"]["directories"]]
    found = [p.parent.relative_to(ROOT) for p in (ROOT / "integrations").glob("*/pyproject.toml")]
    assert sorted(folders) == sorted([".", *map(str, found)])
