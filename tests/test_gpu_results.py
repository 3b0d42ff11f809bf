"""Results of a GPU must belong to the current kernels."""

from __future__ import annotations

import json
from pathlib import Path

from bench.gpu.results import RESULTS, kernel_hashes, stale


def test_committed_results_are_of_these_kernels() -> None:
    """After a change to a kernel, run `make gpu` again or remove its results."""
    assert stale(RESULTS, kernel_hashes()) == []


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
    """The hash is of the content: a file that is rewritten unchanged keeps it."""
    (tmp_path / "a.py").write_text("x = 1\n")
    before = kernel_hashes(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert kernel_hashes(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert kernel_hashes(tmp_path) != before
    assert {"attention_triton.py", "tiles.py", "rope.py"} <= set(kernel_hashes())
