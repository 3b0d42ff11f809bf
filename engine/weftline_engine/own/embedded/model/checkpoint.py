"""Reads the tensors of a model directory from *.safetensors, which the library maps into memory.

The library is imported when the first file is opened. The embedded engine must import with numpy,
torch and triton alone, as `make gpu` runs it with random weights on such a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weftline_engine.own.embedded.model.config import ModelError, read_json
from weftline_engine.own.embedded.model.matrix import Matrix

# Bytes of a number of each type that is read, by the library's names.
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}

# Called for each tensor that is read, with the bytes read so far and the bytes of all tensors.
Heard = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in an open file: its name there, its shape and its bytes."""

    file: Any  # a safe_open, which has no types
    name: str
    shape: tuple[int, ...]
    nbytes: int


class Checkpoint:
    """The tensors of a model directory by name, read to a device when asked for.

    `count` is the number of their weights, and `nbytes` that of their bytes in the files. On the
    CPU the tensors stay mapped.
    """

    count: int
    nbytes: int

    def __init__(
        self,
        directory: Path,
        heard: Heard | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    ) -> None:
        """Map every shard. Raises ModelError for a missing, truncated or foreign file."""
        self._stored: dict[str, _Stored] = {}
        for path in _shards(directory):
            self._stored.update(_stored(path, device))
        self.count = sum(prod(one.shape) for one in self._stored.values())
        self._heard = heard
        self._unread = {name: one.nbytes for name, one in self._stored.items()}
        self.nbytes = sum(self._unread.values())
        self._done = 0

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Tensor `name` on the device. Raises ModelError if it is not there in this shape."""
        stored = self._stored.get(name)
        if stored is None:
            raise ModelError(f"the weights hold no tensor {name}; fetch the model again")
        if stored.shape != shape:
            raise ModelError(
                f"tensor {name} has shape {stored.shape} where config.json means {shape}"
            )
        self._done += self._unread.pop(name, 0)
        if self._heard is not None:
            self._heard(self._done, self.nbytes)
        tensor: Tensor = stored.file.get_tensor(stored.name)
        return tensor

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Matrix `name`, quantised if it is so in the file."""
        return self.read(name, shape)

    def forget(self) -> None:
        """Give the memory back of what was read so far, where that is possible."""


class RandomWeights(Checkpoint):
    """Random tensors of any name and shape, the same in every run. They are for benchmarks.

    The numbers repeat after 2^20, because drawing 7 billion takes minutes. Matrices keep the scale
    of their inputs, norms are 1 and biases 0, so that activations stay finite.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """Make the tensors on `device`, if given, which is faster than copying 13 GB there."""
        drawn = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
        self._drawn = drawn.to(device)
        self.count = self.nbytes = 0

    def __contains__(self, name: str) -> bool:
        return True

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            full = 0.0 if name.endswith("bias") else 1.0
            return torch.full(shape, full, dtype=torch.bfloat16, device=self._drawn.device)
        count = torch.Size(shape).numel()
        some = (self._drawn * shape[-1] ** -0.5).to(torch.bfloat16)
        values: Tensor = some.repeat(-(-count // len(some)))
        return values[:count].view(shape)


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


def _stored(path: Path, device: torch.device) -> dict[str, _Stored]:
    """The tensors of a file, by name, none of which is read yet."""
    from safetensors import SafetensorError, safe_open

    try:
        file: Any = safe_open(path, framework="pt", device=str(device))
    except SafetensorError as error:
        raise ModelError(
            f"{path} is truncated or no safetensors file ({error}); fetch the model again"
        ) from None
    found = {}
    for name in file.keys():  # noqa: SIM118 - it is no mapping
        entry = file.get_slice(name)
        if (size := _BYTES.get(entry.get_dtype())) is None:
            raise ModelError(
                f"tensor {name} in {path.name} is {entry.get_dtype()}; only floats of 16 bits and "
                "more are read, and --engine vllm reads other types"
            )
        shape = tuple(entry.get_shape())
        found[_text_name(name)] = _Stored(file, name, shape, size * prod(shape))
    return found


def _text_name(name: str) -> str:
    """The name that a tensor has in a model of text alone. Models that also read images hold that
    model as `language_model`."""
    return name.removeprefix("language_model.").replace("model.language_model.", "model.")
