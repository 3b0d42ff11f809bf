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
import torch
from torch import Tensor

from weftline_engine.api import SamplingParams
from weftline_engine.own.embedded.array_copies import Readback, put

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
    logits_RV: Tensor, rows: Rows, stop_ids: Sequence[int], own: Mapping[int, Sequence[int]]
) -> None:
    """Let `stop_ids` not be chosen in the rows that `rows.banned` marks, which have not reached
    min_tokens, and neither those that a row has of its `own`."""
    device = logits_RV.device
    for row, ids in own.items():
        if rows.banned[row]:
            logits_RV[row, put(ids, device)] = float("-inf")
    if len(stop_ids) and rows.banned.any():
        banned_R1 = put(np.flatnonzero(rows.banned), device)[:, None]
        logits_RV[banned_R1, put(stop_ids, device)[None, :]] = float("-inf")


@dataclass(frozen=True, slots=True)
class Draws:
    """The drawn tokens of a step, on its device.

    A row whose logits are not finite has NO_TOKEN. A row for which too few candidates were sorted
    has UNSURE. Such rows are among `part`, whose logits are kept in `x_PV` for `settle`.
    """

    tokens_R: Tensor
    rows: Rows
    part: npt.NDArray[np.intp]
    x_PV: Tensor | None

    def settle(self, tokens_R: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`tokens_R` on the host, in which the rows that are UNSURE are drawn from the whole
        vocabulary. Waits for the device if there are any."""
        unsure = np.flatnonzero(tokens_R == UNSURE)
        if not len(unsure):
            return tokens_R
        assert self.x_PV is not None, "rows whose candidates suffice are not unsure"
        device = self.x_PV.device
        x_PV = self.x_PV[put(np.searchsorted(self.part, unsure), device)]
        token_P = _draw_cut(x_PV, self.rows, unsure, x_PV.shape[1])
        settled = tokens_R.copy()
        settled[unsure] = Readback([token_P], device).values()[0]
        return settled


def draw(logits_RV: Tensor, rows: Rows) -> Draws:
    """Draw a token for each row. Does not wait for the device."""
    device = logits_RV.device
    best_R, token_R = _best(logits_RV)
    drawn = np.flatnonzero(rows.temperature > 0)
    cut = (rows.top_p[drawn] < 1) | (rows.top_k[drawn] > 0) | (rows.min_p[drawn] > 0)
    plain, part = drawn[~cut], drawn[cut]
    if len(plain):
        token_R[put(plain, device)] = _draw_any(logits_RV, rows, plain)
    x_PV: Tensor | None = None
    if len(part):
        x_PV = logits_RV[put(part, device)]
        count = min(_CANDIDATES, int(_limits(rows, part, x_PV).max()), x_PV.shape[1])
        token_R[put(part, device)] = _draw_cut(x_PV, rows, part, count)
    # A draw from logits that are not finite is meaningless.
    return Draws(torch.where(best_R.isfinite(), token_R, NO_TOKEN), rows, part, x_PV)


def _best(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit of each row (NaN if the row has one) and its token."""
    if logits_RV.device.type != "cpu":
        best_R, token_R = logits_RV.max(dim=-1)
        return best_R, token_R
    # For 64 rows of 49,152 logits numpy's argmax takes 1.5 ms, and torch's max 14 ms.
    token_R = torch.from_numpy(logits_RV.numpy().argmax(axis=-1))
    return logits_RV.gather(1, token_R[:, None])[:, 0], token_R


def _draw_any(logits_RV: Tensor, rows: Rows, part: npt.NDArray[np.intp]) -> Tensor:
    """Draw from the whole vocabulary."""
    temperature_R = put(rows.temperature[part].astype(np.float64), logits_RV.device)
    x_RV = logits_RV[put(part, logits_RV.device)].double() / temperature_R[:, None]
    p_RV = torch.softmax(x_RV, dim=-1)
    return _invert(p_RV, put(rows.uniform[part], logits_RV.device))


def _limits(rows: Rows, part: npt.NDArray[np.intp], x_PV: Tensor) -> npt.NDArray[np.int64]:
    """How many of the likeliest tokens each row of `part` may take."""
    return np.where(rows.top_k[part] > 0, rows.top_k[part], x_PV.shape[1])


def _draw_cut(x_PV: Tensor, rows: Rows, part: npt.NDArray[np.intp], count: int) -> Tensor:
    """Draw from the tokens that have at least `min_p` of the likeliest one's probability; of these
    from the `top_k` likeliest; of these from the fewest whose probabilities add up to `top_p`.

    `x_PV` are the logits of the rows `part`. Sorts the `count` likeliest tokens. A row for which
    these are too few is UNSURE.
    """
    device, vocabulary = x_PV.device, x_PV.shape[1]
    limits_P = _limits(rows, part, x_PV)
    limit_P = put(limits_P, device)
    min_p_P1 = put(rows.min_p[part].astype(np.float64), device)[:, None]
    temperature_P1 = put(rows.temperature[part].astype(np.float64), device)[:, None]
    best_PZ, ids_PZ = torch.topk(x_PV, count, dim=-1)
    x_PZ = best_PZ.double() / temperature_P1
    least_P1 = x_PZ[:, :1] + min_p_P1.log()
    outside_PZ = torch.arange(count, device=device)[None, :] >= limit_P[:, None]
    x_PZ = x_PZ.masked_fill(outside_PZ | (x_PZ < least_P1), float("-inf"))
    total_P = torch.logsumexp(x_PZ, -1)
    if (limits_P > count).any():
        # The sum over the tokens that top_k keeps, or over the vocabulary if top_k is off.
        wide_PV = x_PV.double() / temperature_P1
        all_P = torch.logsumexp(wide_PV.masked_fill(wide_PV < least_P1, float("-inf")), -1)
        total_P = torch.where(limit_P > count, all_P, total_P)
    p_PZ = (x_PZ - total_P[:, None]).exp()
    top_p_P = put(rows.top_p[part].astype(np.float64), device)
    before_PZ = p_PZ.cumsum(-1) - p_PZ
    kept_PZ = p_PZ.masked_fill(before_PZ >= top_p_P[:, None], 0.0)
    index_P = _invert(kept_PZ, put(rows.uniform[part], device))
    token_P = ids_PZ.gather(1, index_P[:, None])[:, 0]
    if count == vocabulary:
        return token_P
    # Candidates are sorted, so after one with probability 0 all have probability 0.
    whole_P = (limit_P <= count) | (p_PZ[:, -1] == 0)
    return torch.where(whole_P | (p_PZ.sum(-1) >= top_p_P), token_P, UNSURE)


def _invert(p_RZ: Tensor, uniform_R: Tensor) -> Tensor:
    """The index at which the running sum of each row passes its share `uniform_R` of the total."""
    sums_RZ = p_RZ.cumsum(-1)
    total_R = sums_RZ[:, -1]
    # A share just below 1 may round to the total, which no running sum exceeds.
    share_R = torch.minimum(uniform_R * total_R, total_R.nextafter(torch.zeros_like(total_R)))
    at_R1 = torch.searchsorted(sums_RZ, share_R[:, None], right=True)
    return at_R1[:, 0].clamp(max=p_RZ.shape[-1] - 1)  # beyond it where the row is NaN
