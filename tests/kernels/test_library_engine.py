"""The engine of a device gives the same tokens by each attention library.

The libraries are stand-ins of their documented interfaces (tests/attention_libraries.py).
"""

from __future__ import annotations

import pytest
import torch

from tests.attention_libraries import ALL, stand_in
from tests.engines import llama, on_cpu, on_device, requests, run
from tests.kernels.test_device_engine import CPU, Again
from weftline_kernels.jit import INTERPRETED
from weftline_kernels.libraries import AttentionLibrary
from weftline_kernels.step_attention import StepKind

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("library", ALL, ids=lambda one: one.name)
def test_each_library_gives_the_tokens_of_the_torch_engine(
    library: AttentionLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six requests, behind a shared prefix and without one, with prompts in chunks, preemption, and
    decode steps of every captured size."""
    asked = stand_in(monkeypatch, library)
    config, ops = llama(layers=1), requests(tokens=3)
    expected = run(on_cpu(config), ops)
    capture = Again()
    engine = on_device(config, capture, CPU, libraries=dict.fromkeys(StepKind, library), blocks=34)
    asked.clear()
    assert run(engine, ops) == expected
    assert capture.replays >= 3
    # Captured steps have the rows of their size, prompts as many as there are.
    assert {one.rows for one in asked} >= {1, 4} and max(one.rows for one in asked) > 4


@pytest.mark.parametrize("kind", [StepKind.DECODE, StepKind.SHARED, StepKind.PROMPT])
def test_a_library_may_compute_one_kind_of_step(
    kind: StepKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashInfer computes this kind alone, and our kernel the other two."""
    library = ALL[0]
    asked = stand_in(monkeypatch, library)
    ops = requests(tokens=3)
    expected = run(on_cpu(llama(layers=1)), ops)
    engine = on_device(llama(layers=1), Again(), CPU, libraries={kind: library})
    asked.clear()
    assert run(engine, ops) == expected
    prompts = {one.function for one in asked} == {"BatchPrefillWithPagedKVCacheWrapper"}
    assert asked and prompts == (kind is StepKind.PROMPT)
    assert torch.isfinite(engine.cache).all()
