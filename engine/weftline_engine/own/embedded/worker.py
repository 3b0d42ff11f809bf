"""Computes the steps that the bookkeeping plans: the model, its KV cache and the sampler.

R = rows whose logits are wanted, V = vocabulary.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from weftline_engine.api import Op
from weftline_engine.bookkeeping.op_checks import OpRefused
from weftline_engine.bookkeeping.op_table import Backend, Live
from weftline_engine.bookkeeping.output import Logprobs, Sampled
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig, StepPlan
from weftline_engine.own.embedded.device import Array
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.released_blocks import release_blocks, use_small_units
from weftline_engine.own.embedded.sample.constraint import (
    BadConstraint,
    Grammars,
    Matcher,
    NoGrammars,
)
from weftline_engine.own.embedded.sample.sampler import Drawn, Sampler
from weftline_engine.own.embedded.step_inputs import Unread, step_input
from weftline_kernels.work_list import NEVER_SHARED

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """The tokens of a step that the host has not read: of these ops, with their constraints."""

    sampler: Sampler
    drawn: Drawn
    ops: list[str]
    matchers: list[Matcher | None]

    @property
    def unread(self) -> Unread:
        """The tokens, for a step that is launched before they are read."""
        return Unread(self.drawn.next_R, {op: row for row, op in enumerate(self.ops)})

    def read(self) -> list[list[Sampled]]:
        """The tokens. Waits until the device has drawn them."""
        chosen = self.sampler.read(self.drawn)
        rows = zip(chosen.tokens, chosen.logprobs, self.matchers, strict=True)
        return [[_sampled(*one, redrawn=row in chosen.redrawn)] for row, one in enumerate(rows)]


class CacheWorker(Backend):
    """The KV cache of a model, whose blocks the bookkeeping moves."""

    def __init__(self, decoder: Model, config: SchedulerConfig) -> None:
        self.decoder = decoder
        self.device = decoder.device
        self.cache = decoder.new_cache(config.blocks, config.block_size)
        if config.windows is not None:
            use_small_units(self.cache)

    def save(self, blocks: Sequence[int]) -> Array | None:
        """These blocks in host memory. None if there is no memory for the copy now."""
        try:
            return self.device.blocks.save(self.cache, blocks)
        except (RuntimeError, MemoryError) as error:  # torch has no type for pinned memory
            _log.warning("a context of %d blocks stays on the device: %s", len(blocks), error)
            return None

    def restore(self, saved: object, pairs: Sequence[tuple[int, int]]) -> bool:
        """Copy block source of `saved` to block target of the cache, for each (source, target).
        False if there is no memory for the copy now."""
        try:
            self.device.blocks.restore(self.cache, saved, pairs)
        except (RuntimeError, MemoryError) as error:
            _log.warning("a context of %d blocks stays in host memory: %s", len(pairs), error)
            return False
        return True

    def wipe(self, blocks: Sequence[int], place: int | None = None) -> None:
        """Fill these blocks with zeros, or the place of one token in each."""
        self.device.blocks.wipe(self.cache, blocks, place)

    def release(self, blocks: Sequence[int]) -> None:
        """Give back the memory of the sliding layers' keys in these blocks."""
        release_blocks(self.cache, self.decoder.config.sliding, blocks)

    def copy(self, plan: StepPlan) -> None:
        """Copy the blocks of the plan. A plan may have copies and no chunks."""
        if plan.copies:
            self.device.blocks.copy(self.cache, plan.copies)


class Worker(CacheWorker):
    """A model on its device. Without `tree_attention` each sequence reads its own keys and values,
    even if it shares them with others."""

    def __init__(
        self,
        decoder: Model,
        config: SchedulerConfig,
        *,
        grammars: Grammars | None,
        seed: int,
        tree_attention: bool,
    ) -> None:
        super().__init__(decoder, config)
        self._block_size = config.block_size
        self._seed = seed
        self._min_blocks_saved = decoder.min_blocks_saved if tree_attention else NEVER_SHARED
        self._grammars = grammars or NoGrammars()
        self._matchers: dict[str, Matcher] = {}  # by op, as are the slots
        self._slots: dict[str, int] = {}
        self.sampler = Sampler(
            config.max_running,
            decoder.config.vocabulary,
            decoder.config.eos,
            self._grammars,
            self.device,
        )

    def accept(self, op: Op) -> None:
        """Compile the op's constraint. Raises Refused if it cannot be followed."""
        if op.sampling is not None and op.sampling.constraint is not None:
            try:
                self._matchers[op.id] = self._grammars.compile(op.sampling.constraint)
            except BadConstraint as reason:
                raise OpRefused("InvalidRequest", str(reason), param="constraint") from None

    def prepare(self, op: Op) -> None:
        """Compile the op's constraint before the op is accepted. `accept` raises the errors."""
        if op.sampling is not None and op.sampling.constraint is not None:
            with suppress(BadConstraint):
                self._grammars.compile(op.sampling.constraint)

    def forget(self, op: str) -> None:
        """Free what the sampler keeps for the op."""
        self._matchers.pop(op, None)
        slot = self._slots.pop(op, None)
        if slot is not None:
            self.sampler.remove(slot)

    def forward(self, plan: StepPlan, last: Launched | None = None) -> Array:
        """Compute the chunks of a plan: fills their KV blocks, and returns logits (R, V). The
        tokens of the `last` step may be unread."""
        step = step_input(
            plan,
            self._block_size,
            min_blocks_saved=self._min_blocks_saved,
            unread=last.unread if last else None,
        )
        return self.decoder.forward(step, self.cache)

    def forced(self, op: str) -> Sequence[int]:
        """The next tokens of the op that its constraint determines completely."""
        matcher = self._matchers.get(op)
        return () if matcher is None else matcher.forced()

    def allowed(self, op: str, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, the op's constraint allows in this order."""
        matcher = self._matchers.get(op)
        return len(tokens) if matcher is None else matcher.allowed(tokens)

    def draw(self, ops: Sequence[Live], logits_RV: Array, place: int = 0) -> Launched:
        """Draw a token for each op, whose step has given it `place` tokens before. Does not wait
        for the device. The next step computes the tokens, also before `read`."""
        for live in ops:
            if live.op.id not in self._slots:
                self._begin(live)
        drawn = self.sampler.draw(
            logits_RV,
            [self._slots[live.op.id] for live in ops],
            [live.sequence.output + place for live in ops],
        )
        names = [live.op.id for live in ops]
        matchers = [self._matchers.get(name) for name in names]
        return Launched(self.sampler, drawn, names, matchers)

    def verify(
        self, ops: Sequence[Live], drafts: Sequence[Sequence[int]], logits_RV: Array
    ) -> list[list[Sampled]]:
        """The next tokens of each op: the drafts that equal the token that is sampled in their
        place, and then the first sampled token that differs.

        `logits_RV` has a row for each op, and after it a row for each of its drafts. An op's rows
        are sampled one after the other, so penalties, constraints and random numbers of a row are
        the same as without drafts.
        """
        firsts = list(itertools.accumulate((1 + len(some) for some in drafts), initial=0))
        found: list[list[Sampled]] = [[] for _ in ops]
        bad = _not_finite(firsts, logits_RV)
        active, place = [i for i in range(len(ops)) if i not in bad], 0
        for i in bad:
            found[i].append(Sampled(None, {}))
        while active:
            rows_RV = logits_RV[self.device.put([firsts[i] + place for i in active])]
            launched = self.draw([ops[i] for i in active], rows_RV, place)
            for i, (sampled,) in zip(active, launched.read(), strict=True):
                found[i].append(sampled)
            active = [i for i in active if _goes_on(found[i][-1], drafts[i], place)]
            place += 1
        return found

    def _begin(self, live: Live) -> None:
        """Prepare to sample the first token of an op, whose prompt is complete."""
        op, params = live.op, live.params
        # Without a seed of its own, the op's is made from its id and the engine's seed, so that it
        # is the same in every run.
        number = int.from_bytes(op.id.encode()[-8:], "little")
        seed = params.seed if params.seed is not None else self._seed + 0x51ED * number
        slot = self.sampler.add(params, seed, self._matchers.get(op.id))
        self._slots[op.id] = slot
        self.sampler.begin(slot, params, live.sequence.tokens)


def _sampled(
    token: int | None, logprobs: Logprobs, matcher: Matcher | None, *, redrawn: bool
) -> Sampled:
    if matcher is None:
        return Sampled(token, logprobs, redrawn=redrawn)
    error, ended = matcher.error, matcher.ended
    return Sampled(token, logprobs, True, error=error, ended=ended, redrawn=redrawn)


def _goes_on(last: Sampled, drafts: Sequence[int], place: int) -> bool:
    """Whether the next row counts: its draft is the token that was sampled."""
    accepted = place < len(drafts) and last.token == drafts[place]
    return accepted and not last.error and not last.ended


def _not_finite(firsts: Sequence[int], logits_RV: Array) -> set[int]:
    """The sequences with a row whose logits are not finite. Rows of rejected drafts count too:
    their keys and values stay in the cache until they are overwritten, and 0 times NaN is NaN. One
    logit of a row is enough to look at: if its hidden state is not finite, none of the logits
    is."""
    rows = np.flatnonzero(~np.isfinite(logits_RV[:, 0])).tolist()
    return {bisect.bisect_right(firsts, row) - 1 for row in rows}
