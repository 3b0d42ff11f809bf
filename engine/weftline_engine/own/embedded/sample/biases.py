"""Biases on the logits of chosen tokens, for the requests that have a logit_bias.

R = rows of a step, V = vocabulary, B = biased tokens of a request, S = tokens banned or forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weftline_engine.own.embedded.device import Array, ComputeDevice

BAN, FORCE = -100.0, 100.0


@dataclass(frozen=True, slots=True)
class _Bias:
    """The bias of one request. If `forced`, only the tokens `chosen_S` may come, else none of
    them."""

    tokens_B: Array
    values_B: Array
    chosen_S: Array
    forced: bool


class Biases:
    """The biases of the running requests, by slot. A step in which no row has one costs a look into
    an empty table."""

    def __init__(self, device: ComputeDevice) -> None:
        self._device = device
        self._of: dict[int, _Bias] = {}

    def begin(self, slot: int, biases: Sequence[tuple[int, float]]) -> None:
        """Enter a request before its first token, if it has biases."""
        if not biases:
            return
        forced = [token for token, value in biases if value >= FORCE]
        chosen = forced or [token for token, value in biases if value <= BAN]
        soft = [(token, value) for token, value in biases if BAN < value < FORCE]
        self._of[slot] = _Bias(
            self._device.put(np.array([token for token, _ in soft], np.int64)),
            self._device.put(np.array([value for _, value in soft], np.float32)),
            self._device.put(np.array(chosen, np.int64)),
            bool(forced),
        )

    def end(self, slot: int) -> None:
        self._of.pop(slot, None)

    def add(self, logits_RV: Array, slots: Sequence[int]) -> None:
        """Add the biases between a ban and a force to the logits of their rows."""
        for row, bias in self._rows(slots):
            logits_RV[row, bias.tokens_B] += bias.values_B

    def ban(self, logits_RV: Array, slots: Sequence[int]) -> None:
        """Set to -inf the logits of tokens that may not come, once all else that forbids tokens has
        done so. A row that would have no token left stays as it is.
        """
        for row, bias in self._rows(slots):
            if not len(bias.chosen_S):
                continue
            xp, row_V = self._device.xp, logits_RV[row]
            chosen_V = self._device.zeros(tuple(row_V.shape), "bool")
            chosen_V[bias.chosen_S] = True
            left_V = xp.where(chosen_V == bias.forced, row_V, float("-inf"))
            some = left_V.max() > float("-inf")
            logits_RV[row] = xp.where(some, left_V, row_V)

    def _rows(self, slots: Sequence[int]) -> list[tuple[int, _Bias]]:
        """The rows of this step that have biases."""
        if not self._of:
            return []
        found = ((row, self._of.get(slot)) for row, slot in enumerate(slots))
        return [(row, bias) for row, bias in found if bias is not None]
