"""Reads the weights of a model directory from *.safetensors, which are mapped into memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from weftline_engine.own.embedded.host_device import Values
from weftline_engine.own.embedded.model.config import ModelError, read_json
from weftline_engine.own.embedded.model.matrix import Matrix, floats
from weftline_engine.own.embedded.model.safetensors_reader import MappedTensor, stored_tensors
from weftline_kernels.cpu.blocks import WeightType, narrow

# Called for each tensor that is read, with the bytes read so far and the bytes of all tensors.
Heard = Callable[[int, int], None]


class Checkpoint:
    """The weights of a model directory by name, which stay mapped.

    `count` is the number of the weights, and `nbytes` that of their bytes in the files.
    """

    count: int
    nbytes: int

    def __init__(self, directory: Path, heard: Heard | None = None) -> None:
        """Map every shard. Raises ModelError for a missing, truncated or foreign file."""
        self._stored: dict[str, MappedTensor] = {}
        for path in _shards(directory):
            found = stored_tensors(path)
            self._stored |= {_text_name(name): one for name, one in found.items()}
        self.count = sum(prod(one.shape) for one in self._stored.values())
        self._heard = heard
        self._unread = {name: one.nbytes for name, one in self._stored.items()}
        self.nbytes = sum(self._unread.values())
        self._done = 0

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def vector(self, name: str, size: int) -> Values:
        """Vector `name` in float32. Raises ModelError if it is not there in this size."""
        found: Values = self._matrix(name, (size,)).values()[0]
        return found

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Matrix `name` in the type that it has in the file. Raises ModelError if it is not there
        in this shape."""
        return self._matrix(name, shape)

    def _matrix(self, name: str, shape: tuple[int, ...]) -> Matrix:
        """The tensor as a matrix; a vector is its only row. float64 becomes float32."""
        stored = self._stored.get(name)
        if stored is None:
            raise ModelError(f"the weights hold no tensor {name}; fetch the model again")
        found = stored.shape
        if len(found) == 3 and found[1] == 1:  # a convolution of each channel by itself
            found = found[0], found[2]
        if found != shape:
            raise ModelError(
                f"tensor {name} has shape {stored.shape} where config.json means {shape}"
            )
        self._done += self._unread.pop(name, 0)
        if self._heard is not None:
            self._heard(self._done, self.nbytes)
        columns = shape[-1]
        if stored.kind == "F64":
            return floats(stored.data().view(np.float64).astype(np.float32).reshape(-1, columns))
        rows = 1 if len(shape) == 1 else shape[0]
        return Matrix(WeightType[stored.kind], stored.data().reshape(rows, -1), columns)

    def forget(self) -> None:
        """Give the memory back of what was read so far. It is read again if it is needed."""
        for mapped in {id(one.file): one.file for one in self._stored.values()}.values():
            mapped.madvise(mmap.MADV_DONTNEED)


class RandomWeights(Checkpoint):
    """Random weights of any name and shape, the same in every run. They are for benchmarks.

    The numbers repeat after 2^20, because drawing 7 billion takes minutes. Matrices keep the scale
    of their inputs, norms are 1 and biases 0, so that activations stay finite.
    """

    def __init__(self) -> None:
        self._drawn = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
        self.count = self.nbytes = 0

    def __contains__(self, name: str) -> bool:
        return True

    def vector(self, name: str, size: int) -> Values:
        return np.full(size, 0.0 if name.endswith("bias") else 1.0, np.float32)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        some = narrow(self._drawn * np.float32(shape[1] ** -0.5))
        numbers = np.resize(some, shape)
        return Matrix(WeightType.BF16, numbers.view(np.uint8).reshape(shape[0], -1), shape[1])

    def forget(self) -> None:
        """Nothing is mapped."""


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted({str(name) for name in read_json(index).get("weight_map", {}).values()})
        # Only the last part of each name is used, so that an index cannot name files elsewhere.
        paths = [directory / Path(name).name for name in names]
    else:
        paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{directory} holds no *.safetensors file; fetch the model again")
    for path in paths:
        if not path.exists():
            raise ModelError(f"shard {path.name} of {directory} is missing; fetch the model again")
    return paths


def _text_name(name: str) -> str:
    """The name that a tensor has in a model of text alone. Models that also read images hold that
    model as `language_model`."""
    return name.removeprefix("language_model.").replace("model.language_model.", "model.")
