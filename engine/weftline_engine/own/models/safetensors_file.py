"""Writes a bf16 safetensors file tensor by tensor, so that only one is in memory at a time.

The file is written by hand, because the safetensors library saves only tensors that are all in
memory at once. The library reads what is written here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BF16_BYTES = 2


def total_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the bytes of these tensors in bf16, without the file's header."""
    return sum(_BF16_BYTES * int(np.prod(shape)) for shape in shapes.values())


def write_bf16(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, npt.NDArray[np.float32]]],
) -> None:
    """Write float32 `tensors`, in the order of `shapes`, rounded to bf16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + total_bytes({name: shape})
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensors to 8 bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for (name, shape), (given, tensor) in zip(shapes.items(), tensors, strict=True):
            assert given == name and tensor.shape == shape, f"{given} came where {name} was due"
            file.write(to_bf16(tensor).tobytes())


def to_bf16(tensor: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bf16 bits of a finite tensor, rounded to nearest with ties to even."""
    bits = np.ascontiguousarray(tensor, dtype="<f4").view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")
