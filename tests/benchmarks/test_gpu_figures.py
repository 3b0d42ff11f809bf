"""The GPU benchmarks run on the CPU, at tiny shapes: they finish and report results."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from bench.gpu import apps
from weftline_engine.own.embedded.engine import Core
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


def test_an_engine_is_gone_before_the_next_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes all memory of the GPU for its KV cache. It is in cycles, so that it needs a
    collection to end."""
    made: list[weakref.ref[Core]] = []

    def watched(*arguments: Any, **options: Any) -> Core:
        core = Core(*arguments, **options)
        made.append(weakref.ref(core))
        return core

    monkeypatch.setattr(prompter, "_load_tokenizer", prompter._load_tokenizer)
    monkeypatch.setattr(apps, "Core", watched)
    monkeypatch.setattr(apps, "SHARING", ("tree",))
    alive = []
    gc.disable()
    try:
        for _ in apps.rows(14, torch.device("cpu"), float("inf"), dry=True):
            alive.append([core() is not None for core in made])
    finally:
        gc.enable()
    assert alive == [[False], [False, False]]
