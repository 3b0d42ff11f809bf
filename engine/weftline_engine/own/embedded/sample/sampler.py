"""Turns a step's logits into tokens: penalties, biases, constraints, draws, log probabilities.

R = rows, W = rows whose log probabilities are wanted, V = vocabulary, A = alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from weftline_engine.api import SamplingParams
from weftline_engine.bookkeeping.output import Logprobs
from weftline_engine.own.embedded.device import Array, ArraysOnTheWay, ComputeDevice
from weftline_engine.own.embedded.host_device import HOST
from weftline_engine.own.embedded.sample.biases import Biases
from weftline_engine.own.embedded.sample.constraint import Grammars, Matcher, forbid
from weftline_engine.own.embedded.sample.penalties import Penalties
from weftline_engine.own.embedded.sample.token_choice import (
    NO_LOGPROBS,
    NO_TOKEN,
    Draws,
    SamplingTable,
    bar_end,
    draw,
)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """A token for each row (None if its logits are not finite), and the log probabilities that the
    row's op asks for. A step that was launched in between has other tokens for the rows `redrawn`.
    """

    tokens: list[int | None]
    logprobs: list[Logprobs]
    redrawn: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens of a step, which are on the device, and what `Sampler.read` needs.

    `next_R` is what the next step computes: the tokens, and 0 for a row that has none yet.
    `fetched` are the tokens, and the log probabilities of the rows `which_W`.
    """

    next_R: Array
    draws: Draws
    slots_R: npt.NDArray[np.int64]
    bound: list[int]  # the rows with constraints, and their matchers
    matchers: list[Matcher]
    which_W: npt.NDArray[np.intp]
    plain_WV: Array | None
    fetched: ArraysOnTheWay


class Sampler:
    """The sampling parameters and token counts of the running generates, by slot."""

    def __init__(
        self,
        capacity: int,
        vocabulary: int,
        eos: Sequence[int],
        grammars: Grammars,
        device: ComputeDevice = HOST,
    ) -> None:
        self._device = device
        self._vocabulary = vocabulary
        self._eos = eos
        self._table = SamplingTable(capacity)
        self._penalties = Penalties(capacity, device)
        self._biases = Biases(device)
        self._grammars = grammars
        self._matchers: dict[int, Matcher] = {}  # by slot
        self._stops: dict[int, tuple[int, ...]] = {}  # of the request itself, by slot

    def add(self, params: SamplingParams, seed: int, matcher: Matcher | None = None) -> int:
        """Enter a request; returns its slot, which `remove` gives back."""
        if matcher is not None:
            # If the constraint allows only the end, banning the end would leave no token.
            params = replace(params, min_tokens=0)
        slot = self._table.add(params, seed)
        if matcher is not None:
            self._matchers[slot] = matcher
        elif params.min_tokens and params.stop_token_ids:
            self._stops[slot] = params.stop_token_ids
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
        self._stops.pop(slot, None)

    def choose(
        self, logits_RV: Array, slots: Sequence[int], produced: Sequence[int]
    ) -> SampledTokens:
        """`draw` and `read` in one: the next token of each row."""
        return self.read(self.draw(logits_RV, slots, produced))

    def draw(self, logits_RV: Array, slots: Sequence[int], produced: Sequence[int]) -> Drawn:
        """Draw the next token of each row, without a wait for the device. `produced` counts those
        before it. May change `logits_RV`."""
        with self._device.computing():
            return self._draw(logits_RV, slots, produced)

    def _draw(self, logits_RV: Array, slots: Sequence[int], produced: Sequence[int]) -> Drawn:
        device, at_R = self._device, np.asarray(slots, np.int64)
        rows = self._table.rows(slots, produced)
        which_W = np.flatnonzero(rows.logprobs != NO_LOGPROBS)
        # The log probabilities are the model's, before anything of the request changes the logits.
        plain_WV: Array | None = None
        if len(which_W):
            wanted_WV = device.rows.wide(logits_RV[device.put(which_W)])
            plain_WV = wanted_WV - device.rows.log_sum_exp(wanted_WV)[:, None]
        self._penalties.apply(logits_RV, at_R)
        self._biases.add(logits_RV, slots)
        bound = [row for row, slot in enumerate(slots) if slot in self._matchers]
        matchers = [self._matchers[slots[row]] for row in bound]
        if bound:
            forbid(logits_RV, bound, self._grammars.masks(matchers), device)
        own = {row: self._stops[slot] for row, slot in enumerate(slots) if slot in self._stops}
        bar_end(logits_RV, rows, self._eos, own, device)
        self._biases.ban(logits_RV, slots)
        draws = draw(logits_RV, rows, device)
        next_R, wanted = draws.tokens_R.clip(min=0), [draws.tokens_R]
        if plain_WV is not None:
            most = min(int(rows.logprobs.max()), plain_WV.shape[1])
            own_W = device.rows.at(plain_WV, next_R[device.put(which_W)])
            wanted += [own_W, *device.rows.largest(plain_WV, most)]
        fetched = device.fetch(wanted)
        return Drawn(next_R, draws, at_R, bound, matchers, which_W, plain_WV, fetched)

    def read(self, drawn: Drawn) -> SampledTokens:
        """The tokens of a step, once the device has drawn them. The next `draw` counts them."""
        found_R, *said = drawn.fetched.values()
        tokens_R = drawn.draws.settle(found_R)
        self._penalties.count(drawn.slots_R, tokens_R)
        moved = [
            (one, token)
            for one, token in zip(drawn.matchers, tokens_R[drawn.bound].tolist(), strict=True)
            if token != NO_TOKEN
        ]
        if moved:
            self._grammars.advance([one for one, _ in moved], [token for _, token in moved])
        redrawn = np.flatnonzero(tokens_R != found_R)
        logprobs: list[Logprobs] = [{}] * len(tokens_R)
        if drawn.plain_WV is not None:
            plain_WV, which_W = drawn.plain_WV, drawn.which_W
            if np.isin(which_W, redrawn).any():
                own_W = self._device.rows.at(
                    plain_WV, self._device.put(tokens_R[which_W].clip(min=0))
                )
                said[0] = self._device.fetch([own_W]).values()[0]
            counts_W = drawn.draws.rows.logprobs[which_W]
            for row, one in zip(which_W.tolist(), _logprobs(counts_W, *said), strict=True):
                logprobs[row] = one
        tokens = [None if one == NO_TOKEN else one for one in tokens_R.tolist()]
        return SampledTokens(tokens, logprobs, frozenset(redrawn.tolist()))


def _logprobs(
    counts_W: npt.NDArray[np.int64],
    own_W: npt.NDArray[np.float64],
    values_WA: npt.NDArray[np.float64],
    ids_WA: npt.NDArray[np.int64],
) -> list[Logprobs]:
    """The log probabilities of each row's token and of its `counts_W` likeliest tokens."""
    columns = zip(
        counts_W.tolist(), own_W.tolist(), values_WA.tolist(), ids_WA.tolist(), strict=True
    )
    return [
        {"logprobs": (own,), "top_tokens": tuple(ids[:n]), "top_logprobs": tuple(values[:n])}
        for n, own, values, ids in columns
    ]
