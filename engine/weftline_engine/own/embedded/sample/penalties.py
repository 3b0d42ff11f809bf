"""The presence, frequency and repetition penalties, which make tokens that occurred less likely.

R = rows of a step, W = rows with penalties, P = requests with penalties, V = vocabulary,
X = pairs of a row with penalties and a token that has occurred in its request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weftline_engine.api import SamplingParams
from weftline_engine.own.embedded.device import Array, ComputeDevice
from weftline_engine.own.embedded.sample.token_choice import NO_TOKEN

# An array of integers can hold no None. One look-up finds the rows of all slots of a step.
_NO_ROW = -1


class Penalties:
    """Counts the tokens of the requests that have penalties, in one row for each request. A row
    takes 5 bytes for each token of the vocabulary, 250 kB for 49,152 tokens. The first rows are
    allocated when a request needs one."""

    def __init__(self, capacity: int, device: ComputeDevice) -> None:
        self._device = device
        self._row_of = np.full(capacity, _NO_ROW)  # by slot
        self._free: list[int] = []
        self._output_PV = device.zeros((0, 0), "int32")
        self._seen_PV = device.zeros((0, 0), "bool")
        self._weights_P3 = device.zeros((0, 3), "float64")

    def begin(
        self, slot: int, params: SamplingParams, prompt: Sequence[int], vocabulary: int
    ) -> None:
        """Enter a request before its first token, if it has penalties."""
        weights = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
        if weights == (0.0, 0.0, 1.0):
            return
        if not self._free:
            self._grow(vocabulary)
        row = self._free.pop()
        if slot >= len(self._row_of):
            self._row_of = np.concatenate([self._row_of, np.full(slot + 1, _NO_ROW)])
        self._row_of[slot] = row
        self._output_PV[row] = 0
        self._seen_PV[row] = False
        self._seen_PV[row, self._device.put(prompt)] = True
        self._weights_P3[row] = self._device.put(np.array(weights))

    def end(self, slot: int) -> None:
        if slot < len(self._row_of) and self._row_of[slot] != _NO_ROW:
            self._free.append(int(self._row_of[slot]))
            self._row_of[slot] = _NO_ROW

    def apply(self, logits_RV: Array, slots: npt.NDArray[np.int64]) -> None:
        """Change the logits of the rows with penalties: repetition first, as in other engines."""
        which, rows = self._find(slots)
        if not len(which):
            return
        which_W, rows_W = self._device.put(which), self._device.put(rows)
        if not self._device.immediate:
            # The host must not wait for the number of tokens that have occurred.
            x_WV, seen_WV = logits_RV[which_W], self._seen_PV[rows_W]
            weights_3W1 = self._weights_P3[rows_W].T[:, :, None]
            changed_WV = self._penalised(x_WV, self._output_PV[rows_W], *weights_3W1)
            logits_RV[which_W] = self._device.xp.where(seen_WV, changed_WV, x_WV)
            return
        # Only the tokens that have occurred, some hundred in each request.
        at_X, token_X = self._seen_PV[rows_W].nonzero()
        row_X, state_X = which_W[at_X], rows_W[at_X]
        weights_3X, output_X = self._weights_P3[state_X].T, self._output_PV[state_X, token_X]
        x_X = logits_RV[row_X, token_X]
        logits_RV[row_X, token_X] = self._penalised(x_X, output_X, *weights_3X)

    def count(self, slots: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Count a token for each of these requests, or none for NO_TOKEN."""
        which, rows = self._find(np.where(tokens != NO_TOKEN, slots, len(self._row_of)))
        if not len(which):
            return
        rows_W, tokens_W = self._device.put(rows), self._device.put(tokens[which])
        self._output_PV[rows_W, tokens_W] += 1
        self._seen_PV[rows_W, tokens_W] = True

    def _find(
        self, slots: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """The indices of the slots that have penalties, and their rows in the tables. Most steps
        have none, which the host sees without a call to the device."""
        rows = np.full(len(slots), _NO_ROW)
        known = slots < len(self._row_of)
        rows[known] = self._row_of[slots[known]]
        which = np.flatnonzero(rows != _NO_ROW)
        return which, rows[which]

    def _grow(self, vocabulary: int) -> None:
        """Double the rows, or make the first four."""
        size = len(self._output_PV)
        more = max(4, size)
        self._free.extend(range(size + more - 1, size - 1, -1))
        self._output_PV = self._grown(self._output_PV, size, more, vocabulary, "int32")
        self._seen_PV = self._grown(self._seen_PV, size, more, vocabulary, "bool")
        self._weights_P3 = self._grown(self._weights_P3, size, more, 3, "float64")

    def _grown(self, old: Array, size: int, more: int, width: int, dtype: str) -> Array:
        new = self._device.zeros((size + more, width), dtype)
        if size:
            new[:size] = old
        return new

    def _penalised(
        self, logits: Array, output: Array, presence: Array, frequency: Array, repetition: Array
    ) -> Array:
        """The logits of tokens that have occurred, `output` times of them in the output."""
        x = self._device.rows.wide(logits)
        x = self._device.xp.where(x > 0, x / repetition, x * repetition)
        x = x - frequency * output - presence * (output > 0)
        return self._device.rows.alike(x, logits)
