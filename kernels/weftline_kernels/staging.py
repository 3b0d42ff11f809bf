"""A device buffer that is filled from pinned host memory without blocking the host.

A copy from ordinary memory blocks the host until the device performs it. The device reads pinned
memory while the host continues, so the host must not change that memory before it was read.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Staging:
    """A fixed buffer of numbers: `tensor` is on the device, and its address never changes."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.tensor: Tensor = torch.zeros(count, dtype=dtype, device=device)
        self._host = torch.zeros(count, dtype=dtype, pin_memory=pinned)
        self._array: npt.NDArray[np.signedinteger] = self._host.numpy()
        self._was_read: torch.cuda.Event | None = None
        if pinned:
            self._was_read = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, parts: Iterable[tuple[int, npt.NDArray[np.signedinteger]]], length: int) -> None:
        """Write each (offset, values), and copy the first `length` numbers to the device.

        The copy is in the order of the current stream. Waits only until the device has read the
        numbers of the previous call.
        """
        if self._was_read is not None:
            self._was_read.synchronize()
        for offset, values in parts:
            self._array[offset : offset + len(values)] = values
        self.tensor[:length].copy_(self._host[:length], non_blocking=True)
        if self._was_read is not None:
            self._was_read.record()
