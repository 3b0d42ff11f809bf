"""Random blocks of quantised weights, and a tiny model whose matrices consist of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from weftline_kernels.cpu.blocks import QUANTISED, SIZES, Bytes, WeightType, row_bytes

# Where a block's float16 numbers are.
_SCALES = {
    WeightType.Q6_K: (208,),
    **dict.fromkeys((WeightType.Q4_1, WeightType.Q5_1, WeightType.Q4_K, WeightType.Q5_K), (0, 2)),
}
# What a number of that size makes of the largest code.
_LARGEST = {WeightType.Q4_K: 63 * 15, WeightType.Q5_K: 63 * 31, WeightType.Q6_K: 128 * 32}


def random_rows(kind: WeightType, rows: int, columns: int, seed: int = 0) -> Bytes:
    """Rows with random bits in every field, and scales that make weights of about a tenth."""
    draw = np.random.default_rng(seed)
    found = draw.integers(0, 256, (rows, row_bytes(kind, columns)), dtype=np.uint8)
    weights, size = SIZES[kind]
    blocks = found.reshape(rows, columns // weights, size)
    for at in _SCALES.get(kind, (0,)):
        scales = draw.normal(0.0, 0.3 / _LARGEST.get(kind, 60), blocks.shape[:2])
        blocks[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return found


def into_blocks(directory: Path, kind_of: Callable[[str], WeightType]) -> Path:
    """Replace the matrices of a directory in safetensors by random blocks in a file that is mapped.

    Vectors and matrices of plain types keep their values.
    """
    path, tensors, offset = directory / "model.safetensors", {}, 32
    with (directory / "model.gguf").open("wb") as file:
        file.write(bytes(offset))
        for seed, (name, values) in enumerate(load_file(path).items()):
            kind = WeightType.F32 if values.ndim == 1 else kind_of(name)
            if kind in QUANTISED:
                data = random_rows(kind, len(values), values.shape[1], seed).tobytes()
            else:
                data = values.astype("<f4" if kind == WeightType.F32 else "<f2").tobytes()
            tensors[name] = {"type": int(kind), "shape": list(values.shape), "offset": offset}
            file.write(data)
            offset += len(data)
    path.unlink()
    index = {"file": "model.gguf", "tensors": tensors}
    (directory / "blocks.json").write_text(json.dumps(index))
    return directory
