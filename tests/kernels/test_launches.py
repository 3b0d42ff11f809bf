"""The kernels that a captured decode step launches, counted on a pretended device."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests import pretend
from tests.engines import llama, network, on_device
from tests.pretended_engine import install
from tests.torch_kernels import KERNELS, StandIn
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_kernels.operations import TRITON

# Ours in a layer: residual and norm twice, norms of the heads with rope and the store, attention,
# and the gate.
OURS = {"_rms_norm": 2, "_rope_store": 1, "_attend": 1, "_silu_mul": 1}
# torch's: query, key and value in one, attention's output, gate and up in one, and down.
PRODUCTS = {"addmm": 1, "mm": 3}
# Of a step: tokens, embedding, sines and cosines, the first norm apart, and the logits.
BESIDE = {
    "index_select": 1, "embedding": 1, "_to_copy": 1, "mul": 3, "cos": 1, "sin": 1, "neg": 1,
    "cat": 2, "index": 2, "_rms_norm": 1, "mm": 1,
}  # fmt: skip


def launches(config: LlamaConfig) -> list[Counter[str]]:
    """The launches of each captured step of one sequence."""
    with pytest.MonkeyPatch.context() as patch:
        mode = install(patch, {key: StandIn(function) for key, function in KERNELS.items()})
        with mode:
            on_device(config, mode.capture, pretend.DEVICE, max_running=1)
    return [Counter(one) for one in mode.captured]


def a_layer() -> list[dict[str, int]]:
    """What one more layer launches, in each captured step."""
    both = zip(launches(llama(layers=2)), launches(llama(layers=1)), strict=True)
    return [{k: n - fewer[k] for k, n in more.items() if n > fewer[k]} for more, fewer in both]


def test_a_layer_has_five_kernels_of_ours_and_four_products() -> None:
    """Beside the merge of partial results. The heads of this model have norms, as Qwen3's, and its
    queries a bias. Gate and up are one product."""
    (found,) = a_layer()
    assert found == {**OURS, "_merge": 1, **PRODUCTS}
    assert (sum(OURS.values()), sum(PRODUCTS.values())) == (5, 4)
    weights = network(llama(layers=1), torch.float32, torch.device("cpu"), TRITON)
    (layer,) = weights.layers  # type: ignore[attr-defined]
    assert layer.mlp.gate_up_XC.shape == (2 * 80, 48)


def test_a_step_launches_fifteen_beside_its_layers() -> None:
    """Its tokens, their embedding, sines and cosines, the rows that are sampled, and the last norm
    with the logits: as many for any number of layers."""
    (plain,) = launches(llama(layers=1))
    (layer,) = a_layer()
    plain.subtract(layer)
    assert {name: count for name, count in plain.items() if count} == BESIDE
    assert sum(BESIDE.values()) == 15
