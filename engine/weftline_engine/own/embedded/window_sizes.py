"""The size of the KV cache of a model with sliding windows, whose memory is given back."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from weftline_engine.own.embedded.model.config import ModelConfig

# The share of the blocks that may be whole, of those that would fit if all were. Contexts shorter
# than a window need whole blocks, so they lose a fifth of the room. What is saved becomes blocks
# for the full layers: 5 of 6 layers of Gemma 3 slide, and its cache holds twice the tokens.
WHOLE_SHARE = 0.8
MOST_TIMES = 3  # as many blocks as without windows, if nearly all layers slide


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """The blocks of the cache, and how many of them hold the keys of layers with a `window`. Both
    of these are 0 if the sliding layers keep all keys."""

    blocks: int
    window: int = 0
    whole: int = 0


def window_sizes(config: ModelConfig, blocks: int, head_bytes: int) -> WindowSizes:
    """Blocks that take the memory of `blocks` blocks of all layers. `head_bytes` are those of one
    head's keys in a block. The system takes back whole units of memory, and no parts."""
    sliding = config.sliding
    full = config.cache_layers - len(sliding)
    if not sliding or head_bytes % mmap.ALLOCATIONGRANULARITY:
        return WindowSizes(blocks)
    whole = int(blocks * WHOLE_SHARE)
    most = MOST_TIMES * blocks
    if full:
        most = min(most, blocks + (blocks - whole) * len(sliding) // full)
    return WindowSizes(most, max(sliding.values()), whole)
