"""Reads tensors from *.safetensors: a length, a JSON header and raw bytes, mapped into memory."""

from __future__ import annotations

import json
import mmap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weftline_engine.embedded.model.config import ModelError, read_json

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# A header lists names and shapes. Anything longer than this is not a header.
_MOST_HEADER = 100 * 1024 * 1024

# Called for each tensor that is read, with the bytes read so far and the bytes of all tensors.
Heard = Callable[[int, int], None]


class Checkpoint:
    """The tensors of a model directory by name, read when asked for."""

    def __init__(self, directory: Path, heard: Heard | None = None) -> None:
        """Map every shard. Raises ModelError for a missing, truncated or foreign file."""
        self._tensors: dict[str, Tensor] = {}
        for path in _shards(directory):
            self._tensors.update(_read(path))
        self._heard = heard
        self._unread = {name: one.nbytes for name, one in self._tensors.items()}
        self._bytes = sum(self._unread.values())
        self._done = 0

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Tensor `name`, still mapped. Raises ModelError if it is not there in this shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"the weights hold no tensor {name}; fetch the model again")
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"tensor {name} has shape {tuple(tensor.shape)} where config.json means {shape}"
            )
        self._done += self._unread.pop(name, 0)
        if self._heard is not None:
            self._heard(self._done, self._bytes)
        return tensor


class RandomWeights(Checkpoint):
    """Random tensors of any name and shape, the same in every run. They are for benchmarks.

    The numbers repeat after 2^20, because drawing 7 billion takes minutes. Matrices keep the scale
    of their inputs, norms are 1 and biases 0, so that activations stay finite.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """Make the tensors on `device`, if given, which is faster than copying 13 GB there."""
        drawn = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
        self._drawn = drawn.to(device)

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


def _read(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise ModelError(f"{path} is truncated or no safetensors file; fetch the model again")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise ModelError(f"{path} is no safetensors file: its header is not JSON") from None
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, data, 8 + length) for name, entry in header.items()}


def _tensor(path: Path, name: str, entry: dict[str, Any], data: mmap.mmap, base: int) -> Tensor:
    dtype = _DTYPES.get(str(entry["dtype"]))
    if dtype is None:
        raise ModelError(f"tensor {name} in {path.name} is {entry['dtype']}; only floats are read")
    shape = tuple(int(n) for n in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    count = torch.Size(shape).numel()
    if end - begin != count * dtype.itemsize or base + end > len(data):
        raise ModelError(f"{path} is truncated at tensor {name}; fetch the model again")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        # The map is read-only, and nothing writes to it; torch warns that it cannot enforce that.
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.frombuffer(data, dtype=dtype, count=count, offset=base + begin).view(shape)
