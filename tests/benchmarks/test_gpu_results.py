"""Results of a GPU must belong to the current kernels."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.gpu.results import RESULTS, stale
from tests.committed import committed, linked
from tests.kernels.hashes import kernel_hashes


def test_committed_results_are_of_these_kernels(tmp_path: Path) -> None:
    """After a change to a kernel, run `make gpu` again or remove its results."""
    assert stale(linked(RESULTS, tmp_path), kernel_hashes()) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_result_that_git_does_not_know_is_not_judged(tmp_path: Path) -> None:
    """A user has measured in a checkout. Without git all files count."""
    checkout, links = tmp_path / "checkout", tmp_path / "links"
    known, own = checkout / "2026-01-02-a" / "gpu.json", checkout / "2026-01-03-b" / "gpu.json"
    for path in (known, own):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert committed(checkout) == [known, own]
    for command in (["init", "-q"], ["add", str(known)]):
        subprocess.run(["git", "-C", str(checkout), *command], check=True)
    assert committed(checkout) == [known]
    assert [path for path in linked(checkout, links).rglob("*") if path.is_file()] == [
        links / "2026-01-02-a" / "gpu.json"
    ]


def test_a_result_older_than_its_kernel_is_flagged(tmp_path: Path) -> None:
    """Only the newest report of each machine counts, and only the kernels that it names."""
    for folder, digest in (
        ("2026-01-02-h200", "a"),
        ("2026-01-03-h200", "b"),
        ("2026-01-02-b", "a"),
    ):
        (tmp_path / folder).mkdir()
        report = {"kernels": {"rope.py": digest, "gone.py": "c"}}
        (tmp_path / folder / "gpu.json").write_text(json.dumps(report))
    now = {"rope.py": "b", "gone.py": "c", "new.py": "d"}
    assert stale(tmp_path, now) == [
        "2026-01-02-b/gpu.json is older than rope.py: run make gpu again"
    ]
    assert len(stale(tmp_path, {"rope.py": "b"})) == 2


def test_every_kernel_has_a_hash(tmp_path: Path) -> None:
    """The hash is of the content: a file that is only formatted keeps it. A file without a kernel
    has none."""
    kernel = "@kernel\ndef f():\n"
    (tmp_path / "a.py").write_text(f"\n{kernel}    return f(1, 2)\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    before = kernel_hashes(tmp_path)
    assert set(before) == {"a.py"}
    (tmp_path / "a.py").write_text(f"\n\n{kernel}    return f(  # two\n    1,\n    2,\n)\n")
    assert kernel_hashes(tmp_path) == before
    (tmp_path / "a.py").write_text(f"\n{kernel}    return f(1, 3)\n")
    assert kernel_hashes(tmp_path) != before
    assert {"attention_triton.py", "tiles.py", "rope_store.py"} <= set(kernel_hashes())
