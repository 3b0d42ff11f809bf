"""The engine's core: receives verbs, runs one step at a time, and returns the events of each.

It is synchronous and single-threaded. The process that runs it provides the thread, the clock and
the detokenizer. A request that fails ends with `Failed` and does not affect the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weftline_engine.api import Event, Fed, Hints, Op, Retention
from weftline_engine.bookkeeping import (
    Book,
    Detokenizer,
    EngineLimits,
    Live,
    Sampled,
    SchedulerConfig,
    StepPlan,
)
from weftline_engine.bookkeeping.drafting import StepCosts
from weftline_engine.embedded.model.base import Model
from weftline_engine.embedded.sample.constraint import Grammars
from weftline_engine.embedded.worker import Worker


class Core:
    """A model with its bookkeeping.

    `probe`, if given, is called with every step's logits (R, V) before sampling, and with the ops
    of its rows. A test makes the logits of one request NaN with it. See `Worker` for
    `tree_attention`.
    """

    def __init__(
        self,
        decoder: Model,
        config: SchedulerConfig,
        detokenizer: Detokenizer,
        *,
        grammars: Grammars | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        probe: Callable[[Tensor, list[str]], None] | None = None,
        tree_attention: bool = True,
    ) -> None:
        self.config = config
        self.limit = min(decoder.config.context_limit, config.blocks * config.block_size)
        self.worker = Worker(
            decoder, config, grammars=grammars, seed=seed, tree_attention=tree_attention
        )
        limits = EngineLimits(
            context=self.limit, vocabulary=decoder.config.vocabulary, eos=decoder.config.eos
        )
        self.book = Book(config, limits, detokenizer, self.worker, clock=clock)
        self.probe = probe

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to report."""
        return self.book.busy

    @property
    def cache(self) -> Tensor:
        """The KV cache, in the layout of the model."""
        return self.worker.cache

    def draft(self, costs: StepCosts | None) -> None:
        """Verify drafts from now on, in steps that cost `costs`. None switches drafts off.

        The model must compute a row in the same way whatever rows are beside it.
        """
        self.book.draft(costs)

    def prepare(self, op: Op) -> None:
        """Compile the op's constraint, which takes 0.3 s at most, in the thread that received it.

        Steps go on meanwhile. `submit` refuses an op whose constraint cannot be compiled.
        """
        self.worker.prepare(op)

    # The verbs of `weftline_engine.api.Engine`. The next step takes them into account.

    def submit(self, op: Op) -> None:
        self.book.submit(op)

    def feed(self, op: str, offset: int, part: Fed, last: bool) -> None:
        self.book.feed(op, offset, part, last)

    def update(self, op: str, hints: Hints) -> None:
        self.book.update(op, hints)

    def cancel(self, op: str) -> None:
        self.book.cancel(op)

    def retain(self, context: str, retention: Retention) -> None:
        self.book.retain(context, retention)

    def free(self, context: str) -> None:
        self.book.free(context)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Plan, compute and sample one step. Returns all events since the last one."""
        plan = self.book.plan()
        try:
            self.worker.copy(plan)
            if plan.chunks:
                self._compute(plan)
        except (RuntimeError, MemoryError, ValueError, ArithmeticError, LookupError) as error:
            self.book.break_off(plan, f"a step failed: {error}")
        return self.book.end_step(plan)

    def _compute(self, plan: StepPlan) -> None:
        """Compute a step. If the model fails, compute the two halves of the step, and so on.

        So in the end only the sequences fail with which the model fails alone. The halves run in
        order, because a sequence may read blocks that an earlier one fills.
        """
        logits_RV, fault = self._forward(plan)
        if logits_RV is not None:
            ops = self.book.apply(plan)
            self.book.record(plan, self._sample(plan, ops, logits_RV))
        elif len(plan.chunks) == 1:
            self.book.break_off(plan, fault)
        else:
            middle = len(plan.chunks) // 2
            for chunks in (plan.chunks[:middle], plan.chunks[middle:]):
                self._compute(replace(plan, chunks=chunks))

    def _forward(self, plan: StepPlan) -> tuple[Tensor | None, str]:
        """The logits of a step, or None and why the model failed.

        The exception ends here. Its traceback holds the tensors of the failed step, and the halves
        of a step that ran out of memory need that memory.
        """
        try:
            return self.worker.forward(plan), ""
        except (RuntimeError, MemoryError, ValueError, ArithmeticError, LookupError) as error:
            return None, f"a step failed: {error}"

    def _sample(
        self, plan: StepPlan, ops: Sequence[Live], logits_RV: Tensor
    ) -> list[list[Sampled]]:
        if not ops:
            return []
        drafts = [chunk.drafts for chunk in plan.chunks if chunk.samples]
        if self.probe is not None:
            rows = zip(ops, drafts, strict=True)
            self.probe(logits_RV, [live.op.id for live, some in rows for _ in (0, *some)])
        return self.worker.sample(ops, drafts, logits_RV)
