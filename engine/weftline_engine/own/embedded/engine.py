"""The engine's core: receives verbs, runs one step at a time, and returns the events of each.

The core is synchronous and single-threaded. The process that runs it provides the thread, the clock
and the detokenizer. A request that fails ends with `Failed` and does not affect the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from weftline_engine.api import Event, Fed, Hints, Op, Retention
from weftline_engine.bookkeeping.book import Book
from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.bookkeeping.op_checks import EngineLimits
from weftline_engine.bookkeeping.op_table import Live
from weftline_engine.bookkeeping.output import Detokenizer
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig, StepPlan
from weftline_engine.own.embedded.device import Array
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.sample.constraint import Grammars
from weftline_engine.own.embedded.worker import Launched, Worker

# What a failed step may raise. Other exceptions end the engine.
FAULTS = (RuntimeError, MemoryError, ValueError, ArithmeticError, LookupError)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step whose tokens the host has not read, and the ops that it samples them for."""

    plan: StepPlan
    sampling: list[Live]
    launched: Launched


class Core:
    """A model with its bookkeeping.

    `probe`, if given, is called with every step's logits (R, V) before sampling, and with the ops
    of its rows. A test makes the logits of one request NaN with it. See `Worker` for
    `tree_attention`. Without `overlap` the host waits for each step, also on a device.
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
        probe: Callable[[Array, list[str]], None] | None = None,
        tree_attention: bool = True,
        overlap: bool = True,
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
        self._overlaps = overlap and decoder.overlaps
        self._flight: Flight | None = None

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to report."""
        return self.book.busy or self._flight is not None

    @property
    def cache(self) -> Array:
        """The KV cache, in the layout of the model."""
        return self.worker.cache

    def draft(self, costs: StepCosts | None) -> None:
        """Verify drafts from now on, in steps that cost `costs`. None switches drafts off.

        The model must compute a row in the same way whatever rows are beside it, and must not
        overlap its steps.
        """
        assert costs is None or not self._overlaps, "drafts are verified with tokens that are known"
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

    def step(self) -> list[Event]:
        """Plan, compute and sample one step. Returns all events since the last one.

        On a device the step is only launched: its tokens are read in the next call, after the next
        step was launched. So the host plans and launches while the device computes.
        """
        with self.worker.device.computing():
            flight = self._flight
            plan = self.book.plan(flight.sampling if flight else ())
            try:
                self.worker.copy(plan)
            except FAULTS as error:
                self._land()
                self.book.break_off(plan, f"a step failed: {error}")
            else:
                self._compute(plan)
            return self.book.end_step(plan)

    def _compute(self, plan: StepPlan) -> None:
        """Launch a step, record the tokens of the last one, and draw those of this one.

        If the model fails, compute the two halves of the step, and so on. So in the end only the
        sequences fail with which the model fails alone. The halves run in order, because a sequence
        may read blocks that an earlier one fills.
        """
        logits_RV, fault = self._forward(plan) if plan.chunks else (None, "")
        self._land()
        if logits_RV is not None:
            self._draw(plan, logits_RV)
            return
        chunks = tuple(chunk for chunk in plan.chunks if chunk.current)
        if len(plan.chunks) == 1:
            self.book.break_off(replace(plan, chunks=chunks), fault)
            return
        middle = -(-len(chunks) // 2)
        for half in (chunks[:middle], chunks[middle:]):
            if half:
                self._compute(replace(plan, chunks=half))

    def _forward(self, plan: StepPlan) -> tuple[Array | None, str]:
        """The logits of a step, or None and why the model failed.

        The exception ends here. Its traceback holds the tensors of the failed step, and the halves
        of a step that ran out of memory need that memory.
        """
        last = self._flight.launched if self._flight else None
        try:
            return self.worker.forward(plan, last), ""
        except FAULTS as error:
            return None, f"a step failed: {error}"

    def _draw(self, plan: StepPlan, logits_RV: Array) -> None:
        """Draw the tokens of a step. A sequence that has ended since the plan gets none."""
        try:
            drawing = [chunk for chunk in plan.chunks if chunk.samples]
            sampling = self.book.apply(plan)
            drafts = [chunk.drafts for chunk in drawing if chunk.current]
            kept = [row for row, chunk in enumerate(drawing) if chunk.current]
            if len(kept) < len(drawing):
                assert not any(drafts), "a model that overlaps verifies no drafts"
                logits_RV = logits_RV[self.worker.device.put(np.array(kept, np.int64))]
            if sampling and self.probe is not None:
                rows = zip(sampling, drafts, strict=True)
                self.probe(logits_RV, [live.op.id for live, some in rows for _ in (0, *some)])
            if any(drafts):
                self.book.record(sampling, self.worker.verify(sampling, drafts, logits_RV))
            else:
                self._flight = Flight(plan, sampling, self.worker.draw(sampling, logits_RV))
        except FAULTS as error:
            self.book.break_off(plan, f"a step failed: {error}")
        if not self._overlaps:
            self._land()

    def _land(self) -> None:
        """Wait for the tokens of the last step, if they were not read yet, and record them."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            self.book.record(flight.sampling, flight.launched.read())
        except FAULTS as error:
            self.book.break_off(flight.plan, f"a step failed: {error}")
