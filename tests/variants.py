"""The builds of the C decoder that this machine runs, and a prompt computed in chunks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weftline_engine.own.embedded.model.base import Model, StepInput
from weftline_kernels.cpu.compiler import flags_of
from weftline_kernels.cpu.loader import FLAGS
from weftline_kernels.cpu.variants import runnable, this_machine
from weftline_kernels.work_list import SequenceRows, build

# Every variant that this machine runs, and products of pairs with their instruction written out.
BUILDS: dict[str, tuple[str, ...]] = {
    **{one.name: flags_of(one) for one in runnable(this_machine())},
    "pairs": (*FLAGS, "-DWEFTLINE_PAIRS"),
}


def prefill(model: Model, tokens: Tensor, chunks: list[int]) -> Tensor:
    """Return the logits at every position of one sequence, computed in chunks of these lengths."""
    cache, blocks, found, start = model.new_cache(24, 16), list(range(23, -1, -1)), [], 0
    for count in chunks:
        at = np.arange(start, start + count)
        slots = np.asarray(blocks)[at // 16] * 16 + at % 16
        work = build([SequenceRows(blocks, 0, count, start)], 16)
        every = torch.arange(count)
        step = StepInput(
            tokens[start : start + count],
            torch.from_numpy(at),
            torch.from_numpy(slots),
            every,
            work,
        )
        found.append(model.forward(step, cache))
        start += count
    return torch.cat(found)
