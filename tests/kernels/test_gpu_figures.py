"""The GPU benchmarks run on the CPU, at tiny shapes: they finish and report results."""

from __future__ import annotations

import pytest
import torch

from bench.gpu import apps
from weftline_server.prompt import prompter

WAYS = {  # fewer than on a GPU, as each takes seconds here
    11: (("blocks",), ("app", "request")),
    14: (("tree",), ("app",)),
    17: (("tree",), ("app",)),
    18: (("tree", "off"), ("app",)),
}


@pytest.mark.parametrize("figure", sorted(WAYS))
def test_applications_run_with_every_way_of_sharing(
    figure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs and single calls run. Without sharing, no token comes from the cache."""
    # Put back at the end.
    monkeypatch.setattr(prompter, "_load_tokenizer", prompter._load_tokenizer)
    sharing, policies = WAYS[figure]
    monkeypatch.setattr(apps, "SHARING", sharing)
    monkeypatch.setattr(apps, "POLICIES", policies)
    rows = list(apps.rows(figure, torch.device("cpu"), float("inf"), dry=True))
    found = [(row["sharing"], row["policy"]) for row in rows]
    assert found == [(one, policy) for one in sharing for policy in policies]
    assert all(row["mean_latency_s"] > 0 and row["ms_a_token"] > 0 for row in rows)
    if figure == 18:
        assert rows[0]["cached"] > 0.2 and rows[1]["cached"] == 0
    late = apps.rows(figure, torch.device("cpu"), 0.0, dry=True)
    assert {row["left_out"] for row in late} == {"for time"}
