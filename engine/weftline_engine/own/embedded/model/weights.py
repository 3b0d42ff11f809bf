"""Opens the weights of a model directory, and says how much memory they take."""

from __future__ import annotations

from pathlib import Path

from weftline_engine.own.embedded.model.blocks_file import BlocksFile, is_blocks
from weftline_engine.own.embedded.model.checkpoint import Checkpoint, Heard
from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.free_memory import available_bytes


def checkpoint(directory: Path, heard: Heard | None = None) -> Checkpoint:
    """The weights of a directory. Raises ModelError."""
    return BlocksFile(directory, heard) if is_blocks(directory) else Checkpoint(directory, heard)


# Bytes of a weight by its type in memory.
WEIGHT_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
}
# The bytes of quantised weights in panels, over those in the file: Q4_K has 148 bytes for 144.
_PACKED = 1.03


def check_free(weights: Checkpoint, kind: str) -> None:
    """Raise ModelError if the weights do not fit into the memory that is free."""
    free = available_bytes()
    quantised = isinstance(weights, BlocksFile) and kind == "bfloat16"
    needed = weights.nbytes * _PACKED if quantised else weights.count * WEIGHT_BYTES[kind]
    if free is not None and needed > free:
        raise ModelError(
            f"the weights need {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; "
            "take a smaller model, one with fewer bits a weight, or --quantize q4_0"
        )
