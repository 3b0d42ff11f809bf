"""The stand-ins of our kernels (tests/torch_kernels.py) compute what Triton's interpreter does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.test_attention_triton import BLOCK, SCALE, STEPS, inputs
from tests.torch_kernels import KERNELS, StandIn
from weftline_kernels.attention_triton import attend
from weftline_kernels.device_tiles import DeviceTiles
from weftline_kernels.jit import INTERPRETED
from weftline_kernels.kv_store import NO_SLOT, kv_store_triton
from weftline_kernels.rms_norm import add_rms_norm_triton, rms_norm_triton
from weftline_kernels.rope import rope_tables
from weftline_kernels.rope_store import rope_store_triton
from weftline_kernels.silu_mul import silu_mul_triton
from weftline_kernels.tiles import cut
from weftline_kernels.work_list import build

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")


def attended(step: str) -> list[Tensor]:
    """Tiles of whole items and of parts of them, narrow and wide, and the merge."""
    work = build(STEPS[step], BLOCK, min_blocks_saved=1)
    tiles = DeviceTiles.of(cut(work, BLOCK, group=2, split=12), torch.device("cpu"))
    return [attend(tiles, *inputs(work, 2, 2, 16, torch.float32), SCALE)]


def normed() -> list[Tensor]:
    x, more, weight = torch.randn(5, 8), torch.randn(5, 8), torch.rand(8)
    return [rms_norm_triton(x, weight, 1e-5), *add_rms_norm_triton(x, more, weight, 1e-5)]


def stored(norms: bool, turned: int) -> list[Tensor]:
    """Three tokens, of which one has no slot, through both ways to store."""
    qkv, (keys, values) = torch.randn(3, 8, 16), torch.zeros(2, 2, 4, BLOCK, 16)
    slots = torch.tensor([5, NO_SLOT, 2])
    tables = rope_tables(torch.tensor([3, 1, 9]), torch.rand(turned // 2), torch.float32)
    heads = (torch.rand(16), torch.rand(16), 1e-5) if norms else None
    q = rope_store_triton(qkv, *tables, heads, keys, values, slots)
    kv_store_triton(values, qkv[:, 4:6], slots + 4 * (slots >= 0))
    return [q, keys, values]


@pytest.mark.parametrize(
    "compute",
    [
        *(pytest.param(lambda name=name: attended(name), id=name) for name in STEPS),
        pytest.param(normed, id="norms"),
        pytest.param(lambda: stored(True, 16), id="norms of the heads, and the store"),
        pytest.param(lambda: stored(False, 12), id="heads turned in part, and the store"),
        pytest.param(lambda: [silu_mul_triton(torch.randn(3, 10))], id="the gate"),
    ],
)
def test_a_stand_in_computes_what_its_kernel_computes(
    compute: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same numbers, by the same launcher. Memory that nobody has set holds NaN, and not what
    the kernel has left there."""
    torch.manual_seed(7)
    expected = compute()
    for (module, name), function in KERNELS.items():
        monkeypatch.setattr(module, name, StandIn(function))
    empty = torch.empty

    def unset(*args: Any, **options: Any) -> Tensor:
        return empty(*args, **options).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", unset)
    torch.manual_seed(7)
    for found, right in zip(compute(), expected, strict=True):
        torch.testing.assert_close(found, right, atol=2e-6, rtol=2e-6)
