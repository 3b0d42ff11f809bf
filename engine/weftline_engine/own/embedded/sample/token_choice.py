"""Chooses the next tokens of all rows of a step at once: greedy, or by temperature, min_p, top_k,
top_p and seed.

R = rows, P = rows whose candidates are cut, V = vocabulary, Z = candidates of a row in falling
order of probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weftline_engine.api import SamplingParams
from weftline_engine.own.embedded.device import Array, ComputeDevice
from weftline_engine.own.embedded.host_device import HOST

# The rows of a step are arrays of integers, which hold no None. Ids and counts are never negative.
NO_TOKEN = -1
UNSURE = -2  # the token must be drawn from more candidates
NO_LOGPROBS = -1
# At first only this many of the likeliest tokens of a row are sorted. In nearly every row they have
# more than 0.99 of the probability. Sorting all 49,152 takes about 10 times as long. Rows for which
# they are too few are drawn again, with all tokens, when the host reads the tokens.
_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """The parameters of a step's rows, as arrays over R; `uniform` holds random numbers."""

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    min_p: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.int64]  # alternatives wanted, or NO_LOGPROBS
    uniform: npt.NDArray[np.float64]
    banned: npt.NDArray[np.bool_]


_ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int64),
        ("min_p", np.float32),
        ("logprobs", np.int64),
        ("seed", np.uint64),
        ("min_tokens", np.int64),
    ]
)


class SamplingTable:
    """One row of parameters for each running generate. A step gathers its rows without a loop."""

    def __init__(self, capacity: int) -> None:
        self._free = list(range(capacity - 1, -1, -1))
        self._rows = np.zeros(capacity, _ROW)

    def add(self, params: SamplingParams, seed: int) -> int:
        """Enter a request; returns its slot, which `remove` gives back."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._rows[slot] = (
            params.temperature,
            params.top_p,
            params.top_k,
            params.min_p,
            NO_LOGPROBS if params.logprobs is None else params.logprobs,
            np.uint64(seed & 0xFFFFFFFFFFFFFFFF),
            params.min_tokens,
        )
        return slot

    def remove(self, slot: int) -> None:
        self._free.append(slot)

    def rows(self, slots: Sequence[int], produced: Sequence[int]) -> Rows:
        """The rows of a step; `produced` counts the tokens that each has generated so far."""
        found, count = self._rows[np.asarray(slots, np.int64)], np.asarray(produced, np.int64)
        return Rows(
            found["temperature"],
            found["top_p"],
            found["top_k"],
            found["min_p"],
            found["logprobs"],
            uniforms(found["seed"], count.astype(np.uint64)),
            count < found["min_tokens"],
        )

    def _grow(self) -> None:
        size = len(self._rows)
        self._free.extend(range(2 * size - 1, size - 1, -1))
        self._rows = np.concatenate([self._rows, np.zeros(size, _ROW)])


def uniforms(
    seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, counter), whatever else is in the batch.

    Two rounds of the splitmix64 finaliser (Steele et al., OOPSLA 2014), one for each word.
    """
    mixed = _mix(_mix(seeds) + counters)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def bar_end(
    logits_RV: Array,
    rows: Rows,
    stop_ids: Sequence[int],
    own: Mapping[int, Sequence[int]],
    device: ComputeDevice = HOST,
) -> None:
    """Let `stop_ids` not be chosen in the rows that `rows.banned` marks, which have not reached
    min_tokens, and neither those that a row has of its `own`."""
    for row, ids in own.items():
        if rows.banned[row]:
            logits_RV[row, device.put(ids)] = float("-inf")
    if len(stop_ids) and rows.banned.any():
        banned_R1 = device.put(np.flatnonzero(rows.banned))[:, None]
        logits_RV[banned_R1, device.put(stop_ids)[None, :]] = float("-inf")


@dataclass(frozen=True, slots=True)
class Draws:
    """The drawn tokens of a step, on its device.

    A row whose logits are not finite has NO_TOKEN. A row for which too few candidates were sorted
    has UNSURE. Such rows are among `part`, whose logits are kept in `x_PV` for `settle`.
    """

    tokens_R: Array
    rows: Rows
    part: npt.NDArray[np.intp]
    x_PV: Array | None
    device: ComputeDevice

    def settle(self, tokens_R: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`tokens_R` on the host, in which the rows that are UNSURE are drawn from the whole
        vocabulary. Waits for the device if there are any."""
        unsure = np.flatnonzero(tokens_R == UNSURE)
        if not len(unsure):
            return tokens_R
        assert self.x_PV is not None, "rows whose candidates suffice are not unsure"
        with self.device.computing():
            x_PV = self.x_PV[self.device.put(np.searchsorted(self.part, unsure))]
            token_P = _draw_cut(x_PV, self.rows, unsure, x_PV.shape[1], self.device)
            settled = tokens_R.copy()
            settled[unsure] = self.device.fetch([token_P]).values()[0]
        return settled


def draw(logits_RV: Array, rows: Rows, device: ComputeDevice = HOST) -> Draws:
    """Draw a token for each row. Does not wait for the device."""
    with device.computing():
        best_R, token_R = device.rows.best(logits_RV)
        drawn = np.flatnonzero(rows.temperature > 0)
        cut = (rows.top_p[drawn] < 1) | (rows.top_k[drawn] > 0) | (rows.min_p[drawn] > 0)
        plain, part = drawn[~cut], drawn[cut]
        if len(plain):
            token_R[device.put(plain)] = _draw_any(logits_RV, rows, plain, device)
        x_PV: Array | None = None
        if len(part):
            x_PV = logits_RV[device.put(part)]
            count = min(_CANDIDATES, int(_limits(rows, part, x_PV).max()), x_PV.shape[1])
            token_R[device.put(part)] = _draw_cut(x_PV, rows, part, count, device)
        # A draw from logits that are not finite is meaningless.
        token_R = device.xp.where(device.xp.isfinite(best_R), token_R, NO_TOKEN)
    return Draws(token_R, rows, part, x_PV, device)


def _draw_any(
    logits_RV: Array, rows: Rows, part: npt.NDArray[np.intp], device: ComputeDevice
) -> Array:
    """Draw from the whole vocabulary."""
    x_PV = device.rows.wide(logits_RV[device.put(part)]) / _put_wide(rows.temperature[part], device)
    p_PV = device.xp.exp(x_PV - device.rows.log_sum_exp(x_PV)[:, None])
    return _invert(p_PV, device.put(rows.uniform[part]), device)


def _limits(rows: Rows, part: npt.NDArray[np.intp], x_PV: Array) -> npt.NDArray[np.int64]:
    """How many of the likeliest tokens each row of `part` may take."""
    return np.where(rows.top_k[part] > 0, rows.top_k[part], x_PV.shape[1])


def _put_wide(values_P: npt.NDArray[np.float32], device: ComputeDevice) -> Array:
    """A number for each row, in float64: (P, 1)."""
    return device.put(values_P.astype(np.float64))[:, None]


def _draw_cut(
    x_PV: Array, rows: Rows, part: npt.NDArray[np.intp], count: int, device: ComputeDevice
) -> Array:
    """Draw from the tokens that have at least `min_p` of the likeliest one's probability; of these
    from the `top_k` likeliest; of these from the fewest whose probabilities add up to `top_p`.

    `x_PV` are the logits of the rows `part`. Sorts the `count` likeliest tokens. A row for which
    these are too few is UNSURE.
    """
    xp, minus = device.xp, float("-inf")
    limits_P = _limits(rows, part, x_PV)
    limit_P = device.put(limits_P)
    min_p_P1 = _put_wide(rows.min_p[part], device)
    temperature_P1 = _put_wide(rows.temperature[part], device)
    top_p_P1 = _put_wide(rows.top_p[part], device)
    best_PZ, ids_PZ = device.rows.largest(x_PV, count)
    x_PZ = device.rows.wide(best_PZ) / temperature_P1
    least_P1 = x_PZ[:, :1] + xp.log(min_p_P1)
    outside_PZ = device.put(np.arange(count))[None, :] >= limit_P[:, None]
    x_PZ = xp.where(outside_PZ | (x_PZ < least_P1), minus, x_PZ)
    total_P = device.rows.log_sum_exp(x_PZ)
    if (limits_P > count).any():
        # The sum over the tokens that top_k keeps, or over the vocabulary if top_k is off.
        wide_PV = device.rows.wide(x_PV) / temperature_P1
        all_P = device.rows.log_sum_exp(xp.where(wide_PV < least_P1, minus, wide_PV))
        total_P = xp.where(limit_P > count, all_P, total_P)
    p_PZ = xp.exp(x_PZ - total_P[:, None])
    before_PZ = xp.cumsum(p_PZ, -1) - p_PZ
    kept_PZ = xp.where(before_PZ >= top_p_P1, 0.0, p_PZ)
    token_P = device.rows.at(ids_PZ, _invert(kept_PZ, device.put(rows.uniform[part]), device))
    if count == x_PV.shape[1]:
        return token_P
    # Candidates are sorted, so after one with probability 0 all have probability 0.
    whole_P = (limit_P <= count) | (p_PZ[:, -1] == 0)
    return xp.where(whole_P | (p_PZ.sum(-1) >= top_p_P1[:, 0]), token_P, UNSURE)


def _invert(p_PZ: Array, uniform_P: Array, device: ComputeDevice) -> Array:
    """The index at which the running sum of each row passes its share `uniform_P` of the total."""
    xp = device.xp
    sums_PZ = xp.cumsum(p_PZ, -1)
    total_P = sums_PZ[:, -1]
    # A share just below 1 may round to the total, which no running sum exceeds.
    share_P = xp.minimum(uniform_P * total_P, xp.nextafter(total_P, xp.zeros_like(total_P)))
    at_P = device.rows.passed(sums_PZ, share_P)
    return at_P.clip(max=p_PZ.shape[-1] - 1)  # beyond it where the row is NaN
