"""Reads where the tensors of a safetensors file lie. The file itself is mapped, and copied nowhere.

The file begins with the length of its header, which is JSON: a type, a shape and two offsets for
each name.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.model.config import ModelError

_LENGTH = 8  # bytes of the header's length
MOST_HEADER = 100_000_000  # bytes, the bound of the format
# Bytes of a number of each type that is read.
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor in a mapped file."""

    file: mmap.mmap
    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return BYTES[self.kind] * prod(self.shape)

    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes of the tensor, in the mapped file."""
        return np.frombuffer(self.file, np.uint8, self.nbytes, self.offset)


def stored_tensors(path: Path) -> dict[str, MappedTensor]:
    """The tensors of a file by name. Raises ModelError."""
    try:
        with path.open("rb") as file:
            # A copy when it is written, because torch takes no memory that is for reading alone.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header, begin = _header(mapped)
        found = {
            str(name): _stored(str(name), entry, begin, mapped, path)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{path} is truncated or no safetensors file ({error}); fetch the model again"
        ) from None
    return found


def _header(mapped: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin. Raises ValueError."""
    size = int.from_bytes(mapped[:_LENGTH], "little")
    if not 2 <= size <= min(MOST_HEADER, len(mapped) - _LENGTH):
        raise ValueError(f"a header of {size} bytes in {len(mapped)}")
    header = json.loads(mapped[_LENGTH : _LENGTH + size])
    if not isinstance(header, dict):
        raise ValueError("the header is no object")
    return header, _LENGTH + size


def _stored(name: str, entry: Any, begin: int, mapped: mmap.mmap, path: Path) -> MappedTensor:
    """A tensor of the header. Raises ModelError for a type that is not read, and ValueError,
    KeyError or TypeError for an entry that does not fit the file."""
    kind, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if kind not in BYTES:
        raise ModelError(
            f"tensor {name} in {path.name} is {kind}; only floats of 16 bits and more are read, "
            "and --engine vllm reads other types"
        )
    first, past = (int(offset) for offset in entry["data_offsets"])
    if min(shape, default=0) < 0 or not 0 <= first <= past <= len(mapped) - begin:
        raise ValueError(f"tensor {name[:60]} lies beyond the end")
    if past - first != BYTES[kind] * prod(shape):
        raise ValueError(f"tensor {name[:60]} has {past - first} bytes")
    return MappedTensor(mapped, kind, shape, begin + first)
