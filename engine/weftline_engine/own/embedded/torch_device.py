"""A device of torch, whose memory is not the host's: a GPU, or one that a test pretends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_engine.own.embedded.device import Pairs
from weftline_engine.own.embedded.model.config import ModelError
from weftline_kernels.jit import HAS_TRITON

# Bytes that are copied between host and device at a time. A context of 8,000 tokens of LLaMA-7B has
# 4 GB.
MOST_COPIED = 64 << 20


def mark(device: torch.device) -> Callable[[], object]:
    """A function that waits until the device has done all that it was told before this call."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize


class Readback:
    """Tensors of a device on their way to host memory."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._here = list(tensors)
        if device.type != "cpu":
            self._here = [
                torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors
            ]
            for here, one in zip(self._here, tensors, strict=True):
                here.copy_(one, non_blocking=True)
        self._wait = mark(device)

    def values(self) -> list[npt.NDArray[Any]]:
        self._wait()
        return [one.numpy() for one in self._here]


def put(values: npt.NDArray[Any] | Sequence[int], device: torch.device) -> Tensor:
    """`values` as a tensor on the device. Does not wait for the device's current work."""
    tensor = torch.from_numpy(np.asarray(values))
    if device.type == "cuda" and len(tensor):
        tensor = tensor.pin_memory()  # the host may wait for a copy from other memory
    return tensor.to(device, non_blocking=True)


class TorchRows:
    """`RowMath` by torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def alike(self, x: Tensor, other: Tensor) -> Tensor:
        return x.to(other.dtype)

    def wide(self, x: Tensor) -> Tensor:
        return x.double()

    def best(self, x_PZ: Tensor) -> tuple[Tensor, Tensor]:
        best_P, places_P = x_PZ.max(dim=-1)
        return best_P, places_P

    def largest(self, x_PZ: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, places = torch.topk(x_PZ, count, dim=-1)
        return values, places

    def at(self, x_PZ: Tensor, places_P: Tensor) -> Tensor:
        return x_PZ.gather(1, places_P[:, None])[:, 0]

    def log_sum_exp(self, x_PZ: Tensor) -> Tensor:
        return torch.logsumexp(x_PZ, -1)

    def passed(self, sums_PZ: Tensor, share_P: Tensor) -> Tensor:
        return torch.searchsorted(sums_PZ, share_P[:, None], right=True)[:, 0]

    def bits(self, masks_PW: npt.NDArray[np.int32], count: int) -> Tensor:
        at_32 = torch.arange(32, dtype=torch.int32, device=self._device)
        bits_PW32 = (put(masks_PW, self._device)[:, :, None] >> at_32) & 1
        return bits_PW32.flatten(1)[:, :count].bool()


class TorchBlocks:
    """`CacheBlocks` in the device's memory. A saved context has its blocks in dimension 0."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, cache: Tensor, pairs: Pairs) -> None:
        sources, targets = (put(side, self._device) for side in zip(*pairs, strict=True))
        cache[:, :, :, targets] = cache.index_select(3, sources)

    def wipe(self, cache: Tensor, blocks: Sequence[int], place: int | None = None) -> None:
        part = cache if place is None else cache.select(4, place)
        part.index_fill_(3, put(blocks, self._device), 0)

    def save(self, cache: Tensor, blocks: Sequence[int]) -> Tensor:
        """The blocks in pinned memory, in dimension 0.

        Pinned memory lets the copy run beside the next steps. Later writes to the blocks, and
        copies back, are on the same stream, so they run after this copy.
        """
        first = cache.movedim(3, 0)
        shape, pinned = (len(blocks), *first.shape[1:]), self._device.type != "cpu"
        saved = torch.empty(shape, dtype=cache.dtype, pin_memory=pinned)
        for begin, past in _pieces(first, len(blocks)):
            piece = first.index_select(0, put(blocks[begin:past], self._device))
            saved[begin:past].copy_(piece, non_blocking=True)
        return saved

    def restore(self, cache: Tensor, saved: Tensor, pairs: Pairs) -> None:
        first = cache.movedim(3, 0)
        for begin, past in _pieces(first, len(saved)):
            here = [(source - begin, target) for source, target in pairs if begin <= source < past]
            if here:
                sources, targets = (put(side, self._device) for side in zip(*here, strict=True))
                # The whole piece is copied on the stream, because the copy to the host may not
                # have ended yet.
                piece = saved[begin:past].to(self._device, non_blocking=True)
                first.index_copy_(0, targets, piece.index_select(0, sources))


class TorchDevice:
    """`ComputeDevice` of torch. Its work is queued: only `Readback.values` waits for it."""

    immediate = False
    xp = torch

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kind = device.type
        self.rows, self.blocks = TorchRows(device), TorchBlocks(device)

    @property
    def name(self) -> str:
        if self.kind != "cuda":
            return self.kind
        return f"cuda: {torch.cuda.get_device_name(self.device)}"

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    def computing(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def put(self, values: npt.NDArray[Any] | Sequence[int]) -> Tensor:
        return put(values, self.device)

    def fetch(self, arrays: Sequence[Tensor]) -> Readback:
        return Readback(arrays, self.device)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)


def _pieces(blocks_first: Tensor, count: int) -> Iterator[tuple[int, int]]:
    """The ranges of `count` blocks that are copied at a time. A copy takes device memory beside
    the KV cache, which has nearly all of it."""
    size = max(1, MOST_COPIED // max(1, blocks_first[0].numel() * blocks_first.element_size()))
    for begin in range(0, count, size):
        yield begin, min(count, begin + size)


def current() -> TorchDevice:
    """The CUDA device that torch computes on."""
    return TorchDevice(torch.device("cuda", torch.cuda.current_device()))


def missing() -> str:
    """Why no CUDA device can be used; empty if one can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; give --device cpu, or a torch built for CUDA"
    if not HAS_TRITON:
        return "Triton is not installed; install weftline[gpu], or give --device cpu"
    return ""


def check_memory(device: torch.device, needed: int) -> None:
    """Raise ModelError unless weights of so many bytes fit into what is free on the device."""
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise ModelError(
            f"the weights need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU's memory "
            f"are free; take a smaller model, or {_on_several(max(2, torch.cuda.device_count()))}"
        )


def one_of_several() -> str:
    """What a user with several GPUs should know; empty on other machines."""
    count = torch.cuda.device_count()
    if count < 2:
        return ""
    return (
        f"one of {count} GPUs computes: start a replica on each, with CUDA_VISIBLE_DEVICES, or "
        f"{_on_several(count)}."
    )


def _on_several(count: int) -> str:
    return (
        f"spread it over {count} GPUs by vLLM: weftline serve MODEL --engine vllm --engine-python "
        f"PYTHON --tensor-parallel {count}"
    )
