"""Each attention library that is installed computes on this device what our kernel does."""

from __future__ import annotations

import pytest
import torch

from weftline_engine.embedded.model.device_model import CudaGraphs
from weftline_kernels.attention_choice import choose, installed, measure, told
from weftline_kernels.libraries import LIBRARIES, AttentionLibrary
from weftline_kernels.library_attention import AttentionShape, refusal

pytestmark = pytest.mark.gpu

LLAMA = AttentionShape(32, 8, 128, 16, torch.bfloat16, 128**-0.5)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_a_library_is_measured_beside_our_kernel(library: AttentionLibrary) -> None:
    """In captured decode steps and in a prompt. The trial itself compares the results."""
    if library not in installed():
        pytest.skip(f"{library.name} is not installed")
    if why := refusal(library, LLAMA):
        pytest.skip(why)
    trial = measure(LLAMA, torch.device("cuda"), CudaGraphs(), [library])
    print(told(trial, choose(trial.seconds)))
    assert trial.refused == {}
