"""The engine's core: takes verbs, runs one step at a time, and returns the events of each.

Synchronous and single-threaded; whoever runs it (weftline_engine.host) brings the thread, the
clock and the detokenizer. A failing request ends with `Failed` and touches no neighbour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from weftline_engine.api import (
    Accepted,
    ContextMoved,
    Event,
    Failed,
    Finished,
    FinishReason,
    Hints,
    Kind,
    Op,
    Part,
    Residency,
    Retention,
    Usage,
)
from weftline_engine.bookkeeping.admission import Refused, check, check_tokens
from weftline_engine.bookkeeping.schedule.scheduler import Scheduler, SchedulerConfig, StepPlan
from weftline_engine.bookkeeping.schedule.sequence import Context, Phase, Sequence
from weftline_engine.bookkeeping.text import Detokenizer, StopScanner
from weftline_engine.embedded.live import Live
from weftline_engine.embedded.memory import copy_pages, restore_pages, save_pages, wipe_pages
from weftline_engine.embedded.model.base import Model
from weftline_engine.embedded.sample.constraint import BadConstraint, Grammars, NoGrammars
from weftline_engine.embedded.sample.sampler import Logprobs, Sampler
from weftline_engine.embedded.step import step_input
from weftline_kernels.work_list import NEVER_SHARED


class Core:
    """A model, its KV cache and everything in flight.

    `probe`, if given, sees every step's logits before sampling (R, V) with the ops of its rows: it
    is how a test makes one request's logits NaN. Without `tree_attention` each sequence reads
    its keys and values for itself, wherever they are shared in memory.
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
        self.decoder = decoder
        self.config = config
        self.scheduler = Scheduler(config)
        self.cache = decoder.new_cache(config.blocks, config.block_size)
        self.limit = min(decoder.config.context_limit, config.blocks * config.block_size)
        self._detokenizer = detokenizer
        self._clock = clock
        self._probe = probe
        self._seed = seed
        self._arrivals = 0
        self._live: dict[str, Live] = {}
        self._held: list[Live] = []  # wait for their parent context
        self._grammars = grammars or NoGrammars()
        self._least = decoder.min_pages_saved if tree_attention else NEVER_SHARED
        self._sampler = Sampler(
            *(config.max_running, decoder.config.vocabulary, decoder.config.eos, self._grammars),
            decoder.device,
        )
        self._events: list[Event] = []
        self._number = 0
        self._quiet = True  # no step has anything to do until something comes

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to report."""
        return bool(self._events) or not self._quiet

    def submit(self, op: Op) -> None:
        """Queue an op; what is wrong with it comes back as `Failed`."""
        self._quiet = False
        old = self._live.get(op.id)
        if old is not None:
            if old.op.attempt >= op.attempt:
                return  # a repeat
            self._end(old)
        sequence = Sequence(op, self._arrivals, open=op.open)
        self._arrivals += 1
        context = Context(op.context, op.salt, op.id, op.attempt)
        live = Live(sequence, context)
        try:
            check(op, self.scheduler.contexts, self.decoder.config.vocabulary)
            if op.sampling is not None and op.sampling.constraint is not None:
                live.matcher = self._grammars.compile(op.sampling.constraint)
        except Refused as refusal:
            self._fail(live, refusal.error, str(refusal))
            return
        except BadConstraint as reason:
            self._fail(live, "InvalidRequest", str(reason))
            return
        self._live[op.id] = live
        self.scheduler.contexts[op.context] = context
        self._emit(live, Accepted)
        if op.parent is not None and not self.scheduler.contexts[op.parent].ready:
            sequence.phase = Phase.HELD
            self._held.append(live)
        else:
            self._queue(live)

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None:
        """Append to an open op's payload; what it has already is skipped."""
        live = self._live.get(op)
        if live is None or not live.sequence.open:
            return
        have = live.offset
        if isinstance(part, str) or offset > have:
            self._fail(live, "InvalidRequest", f"feed at {offset} leaves a gap after token {have}")
            return
        more = part[have - offset :]
        try:
            check_tokens(more, self.decoder.config.vocabulary)
        except Refused as refusal:
            self._fail(live, refusal.error, str(refusal))
            return
        self._quiet = False
        live.offset += len(more)
        live.sequence.tokens.extend(more)
        live.sequence.prompt += len(more)
        live.sequence.open = not last
        if live.sequence.phase is not Phase.HELD:
            self._fit(live)

    def update(self, op: str, hints: Hints) -> None:
        """New advice about an op; the next step is planned with it. Once the op has ended it is
        about the context that it left: when it will be continued, and how much of it."""
        live = self._live.get(op)
        if live is not None:
            live.sequence.hints, self._quiet = hints, False
        elif hints.expected_pause is not None:
            made = (one for one in self.scheduler.contexts.values() if one.maker == op)
            if (context := next(made, None)) is not None and context.ready:
                self.scheduler.expect(context, hints.expected_pause, hints.kept_tokens)

    def cancel(self, op: str) -> None:
        live = self._live.get(op)
        if live is not None:
            self._fail(live, "Cancelled", "the call was cancelled")

    def retain(self, context: str, retention: Retention) -> None:
        """Pin a context again, unpin it, or put its blocks into host memory and unpin it.

        What is unpinned is evicted when its room is needed, and recomputed or copied back when the
        context is continued.
        """
        found = self.scheduler.contexts.get(context)
        if found is None or not found.ready:
            return
        self._quiet = False
        match retention:
            case Retention.KEEP:
                self._restore(found)
            case Retention.EVICTABLE:
                self.scheduler.unpin(found)
            case Retention.DROP:
                self.scheduler.unpin(found)
                found.stash = None
                self._moved(found, Residency.DROPPED, 0)
            case Retention.SWAP if found.held:
                found.stash = save_pages(self.cache, [node.block for node in found.held])
                self.scheduler.unpin(found)
                self._moved(found, Residency.HOST, found.computed)

    def _restore(self, context: Context) -> None:
        """Pin what is still there of a context, and bring the rest back from host memory."""
        if context.held:
            return
        copies = self.scheduler.restore(context, missing=context.stash is not None)
        if copies and context.stash is not None:
            restore_pages(self.cache, context.stash, copies)
        resident = sum(len(node.tokens) for node in context.held)
        if context.stash is not None and resident >= context.computed:
            context.stash = None
            self._moved(context, Residency.RESIDENT, context.computed)

    def free(self, context: str) -> None:
        """Forget a context; one that is still being made ends with its op."""
        found = self.scheduler.contexts.get(context)
        if found is None:
            return
        self._quiet = False
        live = self._live.get(found.maker)
        if live is not None and live.context is found:
            self._fail(live, "Cancelled", "the call's context was freed")
        else:
            self.scheduler.free(found)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Plan, run and apply one step; returns everything that happened since the last one."""
        now = self._clock()
        plan = self.scheduler.plan(now)
        for context in plan.dropped:
            self._moved(context, Residency.DROPPED, 0)
        for sequence in plan.done:
            live = self._live[sequence.op.id]
            live.started = live.started or now
            self._filled(live)
        if plan.chunks:
            for chunk in plan.chunks:
                live = self._live[chunk.sequence.op.id]
                live.started = live.started or now
            try:
                self._run(plan)
            except (RuntimeError, MemoryError) as error:
                for op in [chunk.sequence.op.id for chunk in plan.chunks]:
                    if op not in self._live:
                        continue  # it had ended before the step broke
                    self._fail(
                        self._live[op], "EngineFailed", f"a step failed: {error}", poisoned=True
                    )
        self._quiet = self.scheduler.rests(plan)
        events, self._events = self._events, []
        return events

    def _run(self, plan: StepPlan) -> None:
        if plan.copies:
            copy_pages(self.cache, plan.copies)
        step = step_input(plan, self.config.block_size, min_pages_saved=self._least)
        logits_RV = self.decoder.forward(step, self.cache)
        self.scheduler.apply(plan)
        sampling = [self._live[c.sequence.op.id] for c in plan.chunks if c.samples]
        if sampling:
            if self._probe is not None:
                self._probe(logits_RV, [live.op.id for live in sampling])
            for live in sampling:
                if not live.sequence.filled:
                    self._sampler.begin(live.slot, live.params, live.sequence.tokens)
            chosen = self._sampler.choose(
                logits_RV,
                [live.slot for live in sampling],
                [live.sequence.output for live in sampling],
            )
            for live, token, said in zip(sampling, chosen.tokens, chosen.logprobs, strict=True):
                self._take(live, token, said)
        for chunk in plan.chunks:
            one = chunk.sequence
            if not one.generates and not one.open and one.computed == len(one.tokens):
                self._filled(self._live[one.op.id])

    def _take(self, live: Live, token: int, said: Logprobs) -> None:
        """A generate has its next token, or -1 for NaN."""
        sequence, params = live.sequence, live.params
        if token < 0:
            self._fail(live, "EngineFailed", "the model's logits are not finite", poisoned=True)
            return
        if not sequence.filled:
            sequence.filled = True
            live.filled = self._clock()
            # Not when the op was queued: an open one did not know its last tokens then.
            live.stream = self._detokenizer.stream(sequence.tokens[-8:])
        sequence.tokens.append(token)
        produced = sequence.output
        matcher = live.matcher
        if matcher is not None and matcher.error:
            self._fail(live, "EngineFailed", f"the constraint failed: {matcher.error[:300]}")
            return
        heeds_end = matcher is not None or not params.ignore_eos
        at_end = heeds_end and token in self.decoder.config.eos
        full = produced >= params.max_tokens or len(sequence.tokens) >= self.limit
        ended = matcher is not None and matcher.ended
        text, stopped = live.text(token, at_end=at_end, full=full or ended)
        self._emit(live, Part, offset=produced - 1, tokens=(token,), text=text, **said)
        if at_end or stopped or ended:
            self._finish(live, FinishReason.STOP)
        elif full:
            self._finish(live, FinishReason.LENGTH)

    def _filled(self, live: Live) -> None:
        live.sequence.filled = True
        live.filled = self._clock()
        self._finish(live, FinishReason.FILLED)

    def _finish(self, live: Live, reason: FinishReason) -> None:
        sequence = live.sequence
        usage = Usage(
            prompt_tokens=sequence.prompt,
            cached_tokens=sequence.cached,
            output_tokens=sequence.output,
            started=live.started,
            filled=live.filled,
        )
        self.scheduler.finish(sequence, live.context)
        self._forget(live)
        self._emit(live, Finished, reason=reason, usage=usage)
        self._moved(live.context, Residency.RESIDENT, sequence.computed)
        self._release_children(live.context)

    def _fail(self, live: Live, error: str, message: str, *, poisoned: bool = False) -> None:
        """End an op badly, and the ops that wait for its context with it."""
        self._end(live, poisoned=poisoned)
        self._emit(live, Failed, error=error, message=message)
        self._release_children(live.context)

    def _end(self, live: Live, *, poisoned: bool = False) -> None:
        """Take an op out of the engine without a word."""
        self._quiet = False
        if self._live.get(live.op.id) is not live:
            return
        wipe = self.scheduler.drop(live.sequence, poisoned=poisoned)
        if wipe:
            wipe_pages(self.cache, wipe)
        self.scheduler.contexts.pop(live.context.id, None)
        if live in self._held:
            self._held.remove(live)
        self._forget(live)

    def _forget(self, live: Live) -> None:
        del self._live[live.op.id]
        if live.slot >= 0:
            self._sampler.remove(live.slot)

    def _release_children(self, context: Context) -> None:
        """The ops that waited for `context` go on, or fail where it will never be."""
        for live in [one for one in self._held if one.op.parent == context.id]:
            if live not in self._held:
                continue
            self._held.remove(live)
            if context.ready:
                live.sequence.move_to(Phase.WAITING)
                self._queue(live)
            else:
                self._fail(live, "EngineFailed", f"context {context.id} could not be made")

    def _queue(self, live: Live) -> None:
        """The parent is there: set the tokens up and hand the sequence to the scheduler."""
        op, sequence = live.op, live.sequence
        before: tuple[int, ...] = ()
        if op.parent is not None:
            parent = self.scheduler.contexts[op.parent]
            self.scheduler.touch(parent)
            self._restore(parent)
            before = parent.tokens
        fed = sequence.tokens or list(op.tokens or ())
        live.offset = live.offset or len(fed)
        sequence.tokens = [*before, *fed]
        sequence.prompt = len(sequence.tokens)
        self.scheduler.add(sequence)
        if not self._fit(live):
            return
        if op.kind is Kind.GENERATE:
            params = live.params
            seed = params.seed if params.seed is not None else self._seed + 0x51ED * live.number
            live.slot = self._sampler.add(params, seed, live.matcher)
            live.scanner = StopScanner(params.stop)

    def _fit(self, live: Live) -> bool:
        """Fail an op whose prompt is empty, or leaves no room for an output token."""
        prompt, room = live.sequence.prompt, self.limit - live.sequence.generates
        if prompt > room:
            self._fail(
                live,
                "ContextTooLong",
                f"the prompt has {prompt} tokens and the engine takes at most {room}; shorten it",
            )
            return False
        if prompt == 0 and not live.sequence.open and live.sequence.generates:
            self._fail(live, "InvalidRequest", "the prompt is empty")
            return False
        return True

    def _moved(self, context: Context, residency: Residency, tokens: int) -> None:
        """A context's event carries the id and attempt of the op that made it."""
        self._append(
            context.maker,
            context.attempt,
            ContextMoved,
            context=context.id,
            residency=residency,
            tokens=tokens,
        )

    def _emit(self, live: Live, event: Callable[..., Event], **fields: object) -> None:
        self._append(live.op.id, live.op.attempt, event, **fields)

    def _append(self, op: str, attempt: int, event: Callable[..., Event], **more: object) -> None:
        now, self._number = self._clock(), self._number + 1
        self._events.append(event(op=op, attempt=attempt, sequence=self._number, time=now, **more))
