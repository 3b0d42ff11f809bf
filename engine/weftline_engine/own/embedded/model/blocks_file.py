"""The weights of a directory that holds a GGUF file: its tensors stay in the mapped file.

`blocks.json` names the file beside it and, by Hugging Face name, each tensor's type, shape and
offset. A reader of GGUF wrote it (weftline_engine.own.models), so the engine needs to know no GGUF.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from weftline_engine.own.embedded.host_device import Values
from weftline_engine.own.embedded.model.checkpoint import Checkpoint, Heard
from weftline_engine.own.embedded.model.config import ModelError, read_json
from weftline_engine.own.embedded.model.matrix import Matrix
from weftline_kernels.cpu.blocks import Bytes, WeightType, row_bytes, widen

INDEX = "blocks.json"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor lies. `heads` is their number if llama.cpp reordered the rows of each head,
    and `added` what it added to every number."""

    kind: WeightType
    shape: tuple[int, ...]
    offset: int
    heads: int | None
    added: float

    @property
    def nbytes(self) -> int:
        """The tensor's bytes in the file."""
        return prod(self.shape[:-1]) * row_bytes(self.kind, self.shape[-1])


class BlocksFile(Checkpoint):
    """The tensors of a mapped GGUF file by their Hugging Face names."""

    def __init__(self, directory: Path, heard: Heard | None = None) -> None:
        """Map the file. Raises ModelError if it is not what the index says."""
        index = read_json(directory / INDEX)
        try:
            path = directory / Path(str(index["file"])).name
            self._tensors = {str(name): _read(one) for name, one in index["tensors"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"{directory / INDEX} lacks or misstates {error}; fetch the model again"
            ) from None
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}; fetch the model again") from None
        for name, one in self._tensors.items():
            if not 0 <= one.offset <= len(self._map) - one.nbytes:
                raise ModelError(f"{path} ends before its tensor {name}; fetch the model again")
        self._heard = heard
        self._unread = {name: one.nbytes for name, one in self._tensors.items()}
        self.count = sum(prod(one.shape) for one in self._tensors.values())
        self.nbytes = sum(self._unread.values())
        self._done = 0

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str, size: int) -> Values:
        one = self._found(name, (size,))
        return widen(one.kind, self._rows(one)).reshape(size) - np.float32(one.added)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        one = self._found(name, shape)
        order = None if one.heads is None else _unpermuted(one.shape[0], one.heads)
        return Matrix(one.kind, self._rows(one), one.shape[1], order)

    def forget(self) -> None:
        """Give the memory back of what was read so far. It is read again if it is needed."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def _found(self, name: str, shape: tuple[int, ...]) -> _Tensor:
        one = self._tensors.get(name)
        if one is None:
            raise ModelError(f"the weights hold no tensor {name}; fetch the model again")
        if one.shape != shape:
            raise ModelError(f"tensor {name} has shape {one.shape} where config.json means {shape}")
        self._done += self._unread.pop(name, 0)
        if self._heard is not None:
            self._heard(self._done, self.nbytes)
        return one

    def _rows(self, one: _Tensor) -> Bytes:
        data = np.frombuffer(self._map, np.uint8, one.nbytes, one.offset)
        return data.reshape(-1, row_bytes(one.kind, one.shape[-1]))


def _read(one: Any) -> _Tensor:
    """A tensor of the index. Raises KeyError, TypeError or ValueError."""
    shape, heads = tuple(int(size) for size in one["shape"]), one.get("heads")
    if not 1 <= len(shape) <= 2 or not all(0 < size <= 1 << 32 for size in shape):
        raise ValueError(f"the shape {shape}")
    kind, added = WeightType(int(one["type"])), float(one.get("added", 0.0))
    found = _Tensor(kind, shape, int(one["offset"]), heads, added)
    if heads is not None and (not isinstance(heads, int) or heads < 1 or shape[0] % (2 * heads)):
        raise ValueError(f"{heads} heads")
    row_bytes(found.kind, shape[-1])
    return found


def _unpermuted(rows: int, heads: int) -> Any:
    """Undo llama.cpp's order of rows of a query or key matrix.

    Rotary embedding rotates pairs of rows. llama.cpp stores the rows of a pair side by side
    (0, h/2, 1, h/2 + 1, ...). Hugging Face stores the first rows of all pairs of a head, then the
    second rows.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def is_blocks(directory: Path) -> bool:
    """Whether the weights of this directory are a GGUF file."""
    return (directory / INDEX).is_file()
