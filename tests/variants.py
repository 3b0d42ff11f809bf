"""The builds of the C decoder that this machine runs, and a prompt computed in chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weftline_engine.own.embedded.model.base import Model, StepInput
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.torch_decoders import torch_model
from weftline_engine.own.embedded.model.weights import checkpoint
from weftline_kernels.cpu.compiler import flags_of
from weftline_kernels.cpu.loader import FLAGS
from weftline_kernels.cpu.variants import runnable, this_machine
from weftline_kernels.work_list import SequenceRows, build

# Every variant that this machine runs, and products of pairs with their instruction written out.
BUILDS: dict[str, tuple[str, ...]] = {
    **{one.name: flags_of(one) for one in runnable(this_machine())},
    "pairs": (*FLAGS, "-DWEFTLINE_PAIRS"),
}


def load_model(directory: Path, dtype: torch.dtype) -> HostModel:
    """The model of a Hugging Face directory in torch, on the CPU. Raises ModelError."""
    return HostModel(torch_model(read_config(directory), checkpoint(directory), dtype))


def prefill(model: Model, tokens: Tensor, chunks: list[int]) -> Tensor:
    """Return the logits at every position of one sequence, computed in chunks of these lengths."""
    cache, blocks, found, start = model.new_cache(24, 16), list(range(23, -1, -1)), [], 0
    for count in chunks:
        at = np.arange(start, start + count)
        slots = np.asarray(blocks)[at // 16] * 16 + at % 16
        work = build([SequenceRows(blocks, 0, count, start)], 16)
        part = tokens[start : start + count].numpy()
        step = StepInput(part, at, slots, np.arange(count), work)
        found.append(torch.from_numpy(model.forward(step, cache)))
        start += count
    return torch.cat(found)
