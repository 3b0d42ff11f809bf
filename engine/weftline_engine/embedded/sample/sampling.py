"""Chooses the next tokens of all rows of a step at once: greedy, or by temperature, min_p, top_k,
top_p and seed.

R = rows, V = vocabulary, Z = candidates of a row in falling order of probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_engine.api import SamplingParams
from weftline_engine.embedded.memory import put

# The rows of a step are arrays of integers, which hold no None. Ids and counts are never negative.
NO_TOKEN = -1
NO_LOGPROBS = -1
# At first only this many of the likeliest tokens of a row are sorted. In nearly every row they have
# more than 0.99 of the probability. Sorting all 49,152 takes about 10 times as long.
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


def bar_end(logits_RV: Tensor, rows: Rows, stop_ids: Sequence[int]) -> None:
    """Let `stop_ids` not be chosen in the rows that `rows.banned` marks, which have not reached
    min_tokens."""
    device = logits_RV.device
    if len(stop_ids) and rows.banned.any():
        banned_R1 = put(np.flatnonzero(rows.banned), device)[:, None]
        logits_RV[banned_R1, put(stop_ids, device)[None, :]] = float("-inf")


def sample(logits_RV: Tensor, rows: Rows) -> npt.NDArray[np.int64]:
    """A token for each row; NO_TOKEN if the row's logits are not finite."""
    device = logits_RV.device
    best_R, token_R = _best(logits_RV)
    drawn = np.flatnonzero(rows.temperature > 0)
    cut = (rows.top_p[drawn] < 1) | (rows.top_k[drawn] > 0) | (rows.min_p[drawn] > 0)
    for part, draw in ((drawn[~cut], _draw_any), (drawn[cut], _draw_cut)):
        if len(part):
            token_R[put(part, device)] = draw(logits_RV, rows, part)
    # A draw from logits that are not finite is meaningless.
    tokens: npt.NDArray[np.int64] = torch.where(best_R.isfinite(), token_R, NO_TOKEN).cpu().numpy()
    return tokens


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


def _draw_cut(logits_RV: Tensor, rows: Rows, part: npt.NDArray[np.intp]) -> Tensor:
    """Draw from the tokens that have at least `min_p` of the likeliest one's probability; of these
    from the `top_k` likeliest; of these from the fewest whose probabilities add up to `top_p`.

    Sorts some candidates first, and then all of them for the rows for which these were too few.
    """
    device = logits_RV.device
    tokens_R = torch.empty(len(part), dtype=torch.int64, device=device)
    todo = np.arange(len(part))
    vocabulary = logits_RV.shape[-1]
    limits_R = np.where(rows.top_k[part] > 0, rows.top_k[part], vocabulary)
    for count in (min(_CANDIDATES, int(limits_R.max()), vocabulary), vocabulary):
        chosen = part[todo]
        limit_R = put(limits_R[todo], device)
        min_p_R1 = put(rows.min_p[chosen].astype(np.float64), device)[:, None]
        temperature_R1 = put(rows.temperature[chosen].astype(np.float64), device)[:, None]
        x_RV = logits_RV[put(chosen, device)]
        best_RZ, ids_RZ = torch.topk(x_RV, count, dim=-1)
        x_RZ = best_RZ.double() / temperature_R1
        least_R1 = x_RZ[:, :1] + min_p_R1.log()
        outside_RZ = torch.arange(count, device=device)[None, :] >= limit_R[:, None]
        x_RZ = x_RZ.masked_fill(outside_RZ | (x_RZ < least_R1), float("-inf"))
        total_R = torch.logsumexp(x_RZ, -1)
        if (limits_R[todo] > count).any():
            # The sum over the tokens that top_k keeps, or over the vocabulary if top_k is off.
            wide_RV = x_RV.double() / temperature_R1
            all_R = torch.logsumexp(wide_RV.masked_fill(wide_RV < least_R1, float("-inf")), -1)
            total_R = torch.where(limit_R > count, all_R, total_R)
        p_RZ = (x_RZ - total_R[:, None]).exp()
        top_p_R = put(rows.top_p[chosen].astype(np.float64), device)
        before_RZ = p_RZ.cumsum(-1) - p_RZ
        kept_RZ = p_RZ.masked_fill(before_RZ >= top_p_R[:, None], 0.0)
        # Candidates are sorted, so after one with probability 0 all have probability 0.
        whole_R = (limit_R <= count) | (p_RZ[:, -1] == 0) | (count == vocabulary)
        enough = whole_R | (p_RZ.sum(-1) >= top_p_R)
        index_R = _invert(kept_RZ, put(rows.uniform[chosen], device))
        # Rows that need more candidates are drawn again, with all of them.
        tokens_R[put(todo, device)] = ids_RZ.gather(1, index_R[:, None])[:, 0]
        todo = todo[~enough.cpu().numpy()]
        if not len(todo):
            break
    return tokens_R


def _invert(p_RZ: Tensor, uniform_R: Tensor) -> Tensor:
    """The index at which the running sum of each row passes its share `uniform_R` of the total."""
    sums_RZ = p_RZ.cumsum(-1)
    total_R = sums_RZ[:, -1]
    # A share just below 1 may round to the total, which no running sum exceeds.
    share_R = torch.minimum(uniform_R * total_R, total_R.nextafter(torch.zeros_like(total_R)))
    at_R1 = torch.searchsorted(sums_RZ, share_R[:, None], right=True)
    return at_R1[:, 0].clamp(max=p_RZ.shape[-1] - 1)  # beyond it where the row is NaN
