"""Turns a step's logits into tokens: penalties, biases, constraints, draws, log probabilities.

R = rows, W = rows whose log probabilities are wanted, V = vocabulary, A = alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_engine.api import SamplingParams
from weftline_engine.bookkeeping import Logprobs
from weftline_engine.embedded.memory import put
from weftline_engine.embedded.model.base import CPU
from weftline_engine.embedded.sample.biases import Biases
from weftline_engine.embedded.sample.constraint import Grammars, Matcher, forbid
from weftline_engine.embedded.sample.penalties import Penalties
from weftline_engine.embedded.sample.sampling import (
    NO_LOGPROBS,
    NO_TOKEN,
    SamplingTable,
    bar_end,
    sample,
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token for each row (None if its logits are not finite), and the log probabilities that the
    row's op asks for."""

    tokens: list[int | None]
    logprobs: list[Logprobs]


class Sampler:
    """The sampling parameters and token counts of the running generates, by slot."""

    def __init__(
        self,
        capacity: int,
        vocabulary: int,
        eos: Sequence[int],
        grammars: Grammars,
        device: torch.device = CPU,
    ) -> None:
        self._vocabulary = vocabulary
        self._eos = eos
        self._table = SamplingTable(capacity)
        self._penalties = Penalties(capacity, device)
        self._biases = Biases(device)
        self._grammars = grammars
        self._matchers: dict[int, Matcher] = {}  # by slot

    def add(self, params: SamplingParams, seed: int, matcher: Matcher | None = None) -> int:
        """Enter a request; returns its slot, which `remove` gives back."""
        if matcher is not None:
            # If the constraint allows only the end, banning the end would leave no token.
            params = replace(params, min_tokens=0)
        slot = self._table.add(params, seed)
        if matcher is not None:
            self._matchers[slot] = matcher
        return slot

    def begin(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Prepare for the first token of a request, whose prompt is complete."""
        self._penalties.begin(slot, params, prompt, self._vocabulary)
        self._biases.begin(slot, params.logit_bias)

    def remove(self, slot: int) -> None:
        self._table.remove(slot)
        self._penalties.end(slot)
        self._biases.end(slot)
        self._matchers.pop(slot, None)

    def choose(self, logits_RV: Tensor, slots: Sequence[int], produced: Sequence[int]) -> Chosen:
        """The next token of each row. `produced` counts those before it. May change `logits_RV`."""
        at_R = np.asarray(slots, np.int64)
        rows = self._table.rows(slots, produced)
        which_W = np.flatnonzero(rows.logprobs != NO_LOGPROBS)
        # The log probabilities are the model's, before anything of the request changes the logits.
        plain_WV: Tensor | None = None
        if len(which_W):
            wanted_WV = logits_RV[put(which_W, logits_RV.device)]
            plain_WV = torch.log_softmax(wanted_WV.double(), -1)
        self._penalties.apply(logits_RV, at_R)
        self._biases.add(logits_RV, slots)
        bound = [row for row, slot in enumerate(slots) if slot in self._matchers]
        matchers = [self._matchers[slots[row]] for row in bound]
        if bound:
            forbid(logits_RV, bound, self._grammars.masks(matchers))
        bar_end(logits_RV, rows, self._eos)
        self._biases.ban(logits_RV, slots)
        tokens_R = sample(logits_RV, rows)
        self._penalties.count(at_R, tokens_R)
        if bound:
            chosen = tokens_R[bound].tolist()
            moved = [
                (one, token)
                for one, token in zip(matchers, chosen, strict=True)
                if token != NO_TOKEN
            ]
            self._grammars.advance([one for one, _ in moved], [token for _, token in moved])
        said: list[Logprobs] = [{}] * len(slots)
        if plain_WV is not None:
            found = _logprobs(plain_WV, tokens_R[which_W], rows.logprobs[which_W])
            for row, one in zip(which_W.tolist(), found, strict=True):
                said[row] = one
        return Chosen([None if one == NO_TOKEN else one for one in tokens_R.tolist()], said)


def _logprobs(
    plain_WV: Tensor, tokens_W: npt.NDArray[np.int64], counts_W: npt.NDArray[np.int64]
) -> list[Logprobs]:
    """The log probabilities of each row's token and of its `counts_W` likeliest tokens."""
    index_W1 = put(tokens_W, plain_WV.device).clamp(min=0)[:, None]
    own_W = plain_WV.gather(1, index_W1)[:, 0].tolist()
    most = min(int(counts_W.max()), plain_WV.shape[1])
    top = torch.topk(plain_WV, most, dim=-1)
    ids_WA, values_WA = top.indices.tolist(), top.values.tolist()
    return [
        {"logprobs": (own,), "top_tokens": tuple(ids[:n]), "top_logprobs": tuple(values[:n])}
        for own, ids, values, n in zip(own_W, ids_WA, values_WA, counts_W.tolist(), strict=True)
    ]
