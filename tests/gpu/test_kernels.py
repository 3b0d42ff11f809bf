"""Every kernel against its reference on the CUDA device, and attention as a captured graph."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.checks import BLOCK, CHECKS, TOLERANCE, tree
from weftline_kernels.attention import attention_reference
from weftline_kernels.attention_triton import attend
from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.tiles import cut
from weftline_kernels.work_list import build

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", CHECKS)
def test_a_kernel_equals_its_reference(name: str, dtype: torch.dtype) -> None:
    """The difference is at most what rounding to the type explains."""
    torch.manual_seed(0)
    assert CHECKS[name](torch.device("cuda"), dtype) <= TOLERANCE[dtype]


def test_a_captured_graph_serves_steps_of_other_shapes() -> None:
    """Captured with 16 rows, replayed with 4 and 8: counts are read when it runs."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    held = DeviceTiles(Capacity(200, 400, 200, 16, 400), 16, 64, device)
    q = torch.randn(16, 4, 64, device=device)
    cache = torch.randn(2, 2, 128, BLOCK, 64, device=device)
    works = {levels: build(tree(levels), BLOCK, min_blocks_saved=1) for levels in (2, 3, 4)}
    held.load(cut(works[4], BLOCK, 2, 64))
    attend(held, q, cache[0], cache[1], 0.125)  # compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attend(held, q, cache[0], cache[1], 0.125)
    for work in works.values():
        held.load(cut(work, BLOCK, 2, 64))
        graph.replay()
        exact = (x.double().cpu() for x in (q[: work.rows], cache[0], cache[1]))
        expected = attention_reference(work, 0.125)(*exact)
        torch.testing.assert_close(o[: work.rows].double().cpu(), expected, atol=1e-5, rtol=0)
