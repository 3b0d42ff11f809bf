"""The GPU benchmarks run on the CPU, at tiny shapes: they finish and report results."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from weftline_server.prompt import prompter

BENCH = Path(__file__).resolve().parents[2] / "bench"


WAYS = {  # each takes seconds here
    11: (("pages",), ("app", "request")),
    14: (("tree",), ("app",)),
    17: (("tree",), ("app",)),
    18: (("tree", "off"), ("app",)),
}


@pytest.mark.parametrize("figure", sorted(WAYS))
def test_applications_run_with_every_way_of_sharing(
    figure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs and single calls run. Without sharing, no token comes from the cache."""
    monkeypatch.syspath_prepend(str(BENCH))
    gpu_apps = import_module("gpu_apps")
    # Put back at the end.
    monkeypatch.setattr(prompter, "_load_tokenizer", prompter._load_tokenizer)
    sharing, policies = WAYS[figure]
    monkeypatch.setattr(gpu_apps, "SHARING", sharing)
    monkeypatch.setattr(gpu_apps, "POLICIES", policies)
    rows = gpu_apps.rows(figure, torch.device("cpu"), float("inf"), dry=True)
    found = [(row["sharing"], row["policy"]) for row in rows]
    assert found == [(one, policy) for one in sharing for policy in policies]
    assert all(row["mean_latency_s"] > 0 and row["ms_a_token"] > 0 for row in rows)
    if figure == 18:
        assert rows[0]["cached"] > 0.2 and rows[1]["cached"] == 0
    late = gpu_apps.rows(figure, torch.device("cpu"), 0.0, dry=True)
    assert {row["left_out"] for row in late} == {"for time"}
