"""A buffer on a device and its twin in the host's memory, from which it is filled without waiting.

A copy from ordinary memory stops the host until the device comes to it; pinned memory is read
while the host goes on, and must not change before it was.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Staging:
    """`tensor` lies on the device, and stays where it is."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.tensor: Tensor = torch.zeros(count, dtype=dtype, device=device)
        self._host = torch.zeros(count, dtype=dtype, pin_memory=pinned)
        self._array: npt.NDArray[np.signedinteger] = self._host.numpy()
        self._was_read: torch.cuda.Event | None = None
        if pinned:
            self._was_read = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, parts: Iterable[tuple[int, npt.NDArray[np.signedinteger]]], length: int) -> None:
        """Write each (offset, values), then copy the first `length` numbers to the device, in the
        order of the current stream. Waits only for the device to have read the last ones."""
        if self._was_read is not None:
            self._was_read.synchronize()
        for offset, values in parts:
            self._array[offset : offset + len(values)] = values
        self.tensor[:length].copy_(self._host[:length], non_blocking=True)
        if self._was_read is not None:
            self._was_read.record()
