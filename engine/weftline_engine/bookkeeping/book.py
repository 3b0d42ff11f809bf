"""The bookkeeping of an engine: it receives verbs, plans steps, and turns their results into
events.

The bookkeeping is synchronous and single-threaded, and imports no torch. The embedded engine, which
computes, and the simulated engine use it in the same way: `plan` a step, compute it, `apply` it,
`record` its tokens, send the events of `end_step`. On a device the next step is planned and
launched between `apply` and `record`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items

from weftline_engine.api import (
    ContextMoved,
    Event,
    Fed,
    Finished,
    FinishReason,
    Hints,
    Op,
    Part,
    Paused,
    Retention,
)
from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.bookkeeping.drafting.drafting import Drafting
from weftline_engine.bookkeeping.event_queue import EventLog
from weftline_engine.bookkeeping.op_checks import EngineLimits
from weftline_engine.bookkeeping.op_table import Backend, Live, Ops
from weftline_engine.bookkeeping.output import Detokenizer, OpOutput, Sampled
from weftline_engine.bookkeeping.schedule.sequence import Phase
from weftline_engine.bookkeeping.schedule.step_scheduler import Scheduler, SchedulerConfig, StepPlan


class Book:
    """All ops in flight and all contexts of an engine. An output is sent in parts of `part_tokens`
    tokens."""

    def __init__(
        self,
        config: SchedulerConfig,
        limits: EngineLimits,
        detokenizer: Detokenizer,
        backend: Backend,
        *,
        clock: Callable[[], float] = time.monotonic,
        part_tokens: int = 1,
    ) -> None:
        self.limits = limits
        self.scheduler = Scheduler(config, backend)
        self.contexts = self.scheduler.contexts
        self._log = EventLog(clock)
        self.ops = Ops(self.scheduler, limits, backend, self._log)
        self._detokenizer = detokenizer
        self._part_tokens = part_tokens
        self._backend = backend
        self._drafting: Drafting | None = None
        self._quiet = True  # there is nothing to compute until the next verb

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to report."""
        return bool(self._log) or not self._quiet

    def draft(self, costs: StepCosts | None) -> None:
        """Verify drafts from now on, in steps that cost `costs`. None switches drafts off."""
        self._drafting = None
        if costs is not None:
            self._drafting = Drafting(costs, self._backend, self.ops.tokens_of)

    def submit(self, op: Op) -> None:
        """Queue an op. An error in it comes back as `Failed`."""
        self._quiet = False
        self.ops.submit(op)

    def feed(self, op: str, offset: int, part: Fed, last: bool) -> None:
        """Append to an open op's payload at `offset`. Tokens that it already has are skipped."""
        live = self.ops.get(op)
        if live is not None and live.sequence.open:
            self._quiet = False
            self.ops.feed(live, offset, part, last=last)

    def update(self, op: str, hints: Hints) -> None:
        """Set new hints for an op. The next step is planned with them. After the op's end they say
        when its context will be continued, and how much of it."""
        live = self.ops.get(op)
        if live is not None:
            live.sequence.hints, self._quiet = hints, False
        elif hints.expected_pause is not None:
            context = self.contexts.made_by(op)
            if context is not None and context.ready:
                self.contexts.expect(context, hints.expected_pause, hints.kept_tokens)

    def cancel(self, op: str) -> None:
        """End an op with `Failed`, whose error is Cancelled."""
        live = self.ops.get(op)
        if live is not None:
            self._quiet = False
            self.ops.fail(live, "Cancelled", "the call was cancelled")

    def retain(self, context: str, retention: Retention) -> None:
        """Set the retention of a context that is ready."""
        found = self.contexts.named.get(context)
        if found is not None and found.ready:
            self._quiet = False
            self.contexts.retain(found, retention)

    def free(self, context: str) -> None:
        """Forget a context. If an op is still making it, the op is cancelled."""
        found = self.contexts.named.get(context)
        if found is None:
            return
        self._quiet = False
        if found.ready:
            self.contexts.free(found)
        else:
            live = self.ops.get(found.maker)
            assert live is not None, "an op makes each context that is not ready"
            self.ops.fail(live, "Cancelled", "the call's context was freed")

    def plan(self, unread: Items[Live] = ()) -> StepPlan:
        """Decide the next step. A fill whose tokens are all in the cache ends here.

        The last step has sampled tokens for the `unread` ops, which the host has not read. `record`
        must be called for them before any verb.
        """
        now = self._log.clock()
        for live in unread:
            self._expect(live)
        plan = self.scheduler.plan(now)
        for sequence in (*plan.done, *(chunk.sequence for chunk in plan.chunks)):
            live = self.ops.of(sequence)
            if live.started is None:
                live.started = now
        for sequence in plan.done:
            self._filled(self.ops.of(sequence))
        return plan if self._drafting is None else self._draft(plan, self._drafting)

    def apply(self, plan: StepPlan) -> list[Live]:
        """Note that all that is computed after this step finds its keys and values. Other sequences
        may use its blocks, and filled prompts end.

        Return the ops for which this step samples a token, in the order of their logits.
        """
        self.scheduler.apply(plan)
        current = [chunk for chunk in plan.chunks if chunk.current]
        sampling = [self.ops.of(chunk.sequence) for chunk in current if chunk.samples]
        for sequence in [chunk.sequence for chunk in current]:
            if not sequence.generates and sequence.complete:
                self._filled(self.ops.of(sequence))
        return sampling

    def record(self, sampling: Items[Live], tokens: Items[Items[Sampled]]) -> None:
        """Record what a step has sampled for the ops that `apply` returned: for each one its
        accepted drafts and one more token. An op that has ended since then gets none."""
        for live, sampled in zip(sampling, tokens, strict=True):
            if live.sequence.phase is not Phase.DONE:
                live.sequence.resolve()
                self._add_tokens(live, sampled)

    def break_off(self, plan: StepPlan, message: str) -> None:
        """Fail the ops of a step that failed, except those that had ended before."""
        for sequence in [chunk.sequence for chunk in plan.chunks]:
            live = self.ops.get(sequence.op.id)
            if live is not None and live.sequence is sequence:
                self.ops.fail(live, "EngineFailed", message, poisoned=True)

    def end_step(self, plan: StepPlan) -> list[Event]:
        """End the step, and return the events since the last call."""
        self._quiet = self.scheduler.rests(plan)
        for context in self.contexts.reports():
            residency, tokens = context.state
            self._log.add(
                context.maker,
                context.attempt,
                ContextMoved,
                context=context.id,
                residency=residency,
                tokens=tokens,
            )
        return self._log.drain()

    def _draft(self, plan: StepPlan, drafting: Drafting) -> StepPlan:
        """Add drafts to a step in which every sequence decodes, if they pay."""
        if not plan.chunks or not plan.decodes:
            return plan
        drafters, decoding = [], []
        for chunk in plan.chunks:
            live, sequence = self.ops.of(chunk.sequence), chunk.sequence
            if live.drafter is None:
                live.drafter = drafting.start(live.op, sequence.tokens)
            drafters.append(live.drafter)
            # The step also gives one token after the drafts.
            room = live.params.max_tokens - sequence.output - 1
            room = min(room, self.limits.context - len(sequence.tokens) - 1)
            decoding.append((live.drafter, sequence.tokens, room))
        drafting.choose(decoding)
        drafted = self.scheduler.draft(plan, [drafter.drafts for drafter in drafters])
        for drafter, chunk in zip(drafters, drafted.chunks, strict=True):
            drafter.drafted = len(chunk.drafts)
        return drafted

    def _expect(self, live: Live) -> None:
        """Let an op compute its next token before the host has read it, unless the op ends with it
        in any case."""
        sequence = live.sequence
        room = min(
            live.params.max_tokens - sequence.output, self.limits.context - len(sequence.tokens)
        )
        if room > 1 and sequence.phase is not Phase.DONE:
            sequence.expect()

    def _add_tokens(self, live: Live, sampled: Items[Sampled]) -> None:
        """Add the tokens of a step to a generate: accepted drafts, and one more."""
        sequence = live.sequence
        drafting, drafter = self._drafting, live.drafter
        drafted = drafter is not None and drafter.drafted > 0
        for place, one in enumerate(sampled):
            if place:
                self.scheduler.accept(sequence)
            if drafting is not None and drafter is not None:
                drafting.compare(drafter, one.token)
            self._add_token(live, one)
            if sequence.phase is Phase.DONE:
                break
        if drafted:
            self.scheduler.verified(sequence)
        if drafting is not None and drafter is not None:
            drafter.rest()
            if sequence.phase is Phase.DONE:
                drafting.remember(live.op, sequence.tokens[sequence.prompt :])

    def _add_token(self, live: Live, sampled: Sampled) -> None:
        """Add the next token to a generate."""
        sequence, params, token = live.sequence, live.params, sampled.token
        if token is None:
            self.ops.fail(live, "EngineFailed", "the model's logits are not finite", poisoned=True)
            return
        if live.output is None:
            sequence.filled = True
            live.filled = self._log.clock()
            # The stream starts here because an open op had no last tokens when it was queued.
            stream = self._detokenizer.stream(sequence.tokens[-8:])
            live.output = OpOutput(params, stream, self._part_tokens)
        sequence.tokens.append(token)
        if sampled.redrawn:
            self.scheduler.take_back(sequence)
        if sampled.error:
            self.ops.fail(live, "EngineFailed", f"the constraint failed: {sampled.error[:300]}")
            return
        heeds_end = sampled.constrained or not params.ignore_eos
        at_end = token in params.stop_token_ids or (heeds_end and token in self.limits.eos)
        full = sequence.output >= params.max_tokens or len(sequence.tokens) >= self.limits.context
        last = full or sampled.ended
        stopped = live.output.push(token, sampled.logprobs, at_end=at_end, last=last)
        part = live.output.unsent(ended=at_end or stopped or last)
        if part is not None:
            self.ops.say(live, Part, **part)
        if at_end or stopped or sampled.ended:
            self._stop(live, live.output)
        elif full:
            self.ops.finish(live, Finished, reason=FinishReason.LENGTH)

    def _stop(self, live: Live, output: OpOutput) -> None:
        """End the op of an output that ended by itself, or pause it if the output calls a tool."""
        tool = output.pause()
        if tool is None:
            self.ops.finish(live, Finished, reason=FinishReason.STOP)
        else:
            self.ops.finish(live, Paused, reason=tool)

    def _filled(self, live: Live) -> None:
        live.sequence.filled = True
        live.filled = self._log.clock()
        self.ops.finish(live, Finished, reason=FinishReason.FILLED)
