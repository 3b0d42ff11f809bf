"""The ops in flight. Each waits for its parent context, then is queued, and ends exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from weftline_engine.api import Accepted, Event, Failed, Fed, Op, SamplingParams, Usage
from weftline_engine.bookkeeping.drafting.drafting import Drafter
from weftline_engine.bookkeeping.event_queue import EventLog
from weftline_engine.bookkeeping.kv.contexts import Context
from weftline_engine.bookkeeping.op_checks import (
    EngineLimits,
    OpRefused,
    check,
    check_prompt,
    check_tokens,
)
from weftline_engine.bookkeeping.output import OpOutput
from weftline_engine.bookkeeping.schedule.sequence import Phase, Sequence
from weftline_engine.bookkeeping.schedule.step_scheduler import Scheduler


class Backend:
    """The methods of an engine that the bookkeeping calls. These do nothing, which is enough for an
    engine that computes nothing."""

    def accept(self, op: Op) -> None:
        """An op was checked and is about to be accepted. Raises Refused if it cannot be sampled."""

    def forget(self, op: str) -> None:
        """An accepted op has ended."""

    def forced(self, op: str) -> Items[int]:
        """`drafting.Grammar.forced`"""
        return ()

    def allowed(self, op: str, tokens: Items[int]) -> int:
        """`drafting.Grammar.allowed`"""
        return len(tokens)

    def save(self, blocks: Items[int]) -> object | None:
        """`Storage.save`"""
        return ()

    def restore(self, saved: object, pairs: Items[tuple[int, int]]) -> bool:
        """`Storage.restore`"""
        return True

    def wipe(self, blocks: Items[int], place: int | None = None) -> None:
        """`Storage.wipe`"""

    def release(self, blocks: Items[int]) -> None:
        """`Storage.release`"""


@dataclass(eq=False, slots=True)
class Live:
    """An op in flight. `offset` is the number of tokens of its payload so far. Times are seconds of
    the clock. It gets a `drafter` at the first step that could verify drafts for it."""

    sequence: Sequence
    context: Context
    output: OpOutput | None = None
    offset: int = 0
    started: float | None = None
    filled: float | None = None
    drafter: Drafter | None = None

    @property
    def op(self) -> Op:
        return self.sequence.op

    @property
    def params(self) -> SamplingParams:
        assert self.op.sampling is not None, "a generate was checked to have sampling"
        return self.op.sampling

    @property
    def usage(self) -> Usage:
        """The tokens and times of the op, whose prompt has been computed."""
        assert self.started is not None and self.filled is not None, "the op has not run"
        return Usage(
            prompt_tokens=self.sequence.prompt,
            cached_tokens=self.sequence.cached,
            output_tokens=self.sequence.output,
            started=self.started,
            filled=self.filled,
            drafted_tokens=0 if self.drafter is None else self.drafter.proposed,
            accepted_tokens=0 if self.drafter is None else self.drafter.accepted,
            stopped_by="" if self.output is None else self.output.stopped_by,
        )


class Ops:
    """Accepts, queues and ends ops, and makes the events about them."""

    def __init__(
        self, scheduler: Scheduler, limits: EngineLimits, backend: Backend, log: EventLog
    ) -> None:
        self._scheduler = scheduler
        self._contexts = scheduler.contexts
        self._limits = limits
        self._backend = backend
        self._log = log
        self._live: dict[str, Live] = {}
        self._children: dict[str, list[Live]] = {}  # by the parent context that they wait for
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._live.values())

    def get(self, op: str) -> Live | None:
        return self._live.get(op)

    def of(self, sequence: Sequence) -> Live:
        """The op of a queued sequence."""
        return self._live[sequence.op.id]

    def tokens_of(self, context: str, salt: str) -> Items[int] | None:
        """The tokens of a context that are known so far; an op may still be making it. None if this
        salt has no such context."""
        found = self._contexts.find(context)
        if found is None or found.salt != salt:
            return None
        live = self._live.get(found.maker)
        making = live is not None and live.context is found
        return live.sequence.tokens if making and live is not None else found.tokens

    def submit(self, op: Op) -> None:
        """Accept an op, or fail it. A newer attempt replaces an older one, which makes no more
        events.
        """
        old = self._live.get(op.id)
        if old is not None:
            if old.op.attempt >= op.attempt:
                return  # the same attempt was submitted before
            self._drop(old)
            self._contexts.abandon(old.context, (), ())
        try:
            check(op, self._contexts.named, self._limits)
            self._backend.accept(op)
        except OpRefused as refusal:
            self._log.add(
                op.id,
                op.attempt,
                Failed,
                error=refusal.error,
                message=str(refusal),
                param=refusal.param,
            )
        else:
            self._accept(op)
        if old is not None and old.context.id not in self._contexts.named:
            self._fail_children(old.context)

    def feed(self, live: Live, offset: int, part: Fed, *, last: bool) -> None:
        """Append to an open op's payload. Tokens that it has already are skipped."""
        have = live.offset
        if not isinstance(part, tuple) or offset > have:
            self.fail(live, "InvalidRequest", f"feed at {offset} leaves a gap after token {have}")
            return
        more = part[have - offset :]
        try:
            check_tokens(more, self._limits)
            live.offset += len(more)
            live.sequence.feed(more, last=last)
            if live.sequence.phase is not Phase.HELD:
                check_prompt(live.sequence, self._limits)
        except OpRefused as refusal:
            self.fail(live, refusal.error, str(refusal))

    def finish(self, live: Live, event: Callable[..., Event], **fields: object) -> None:
        """End an op without an error, with this event. Its context becomes ready, and the ops that
        wait for the context are queued."""
        usage = live.usage
        self._scheduler.finish(live.sequence, live.context)
        self._leave(live)
        self.say(live, event, usage=usage, **fields)
        for child in self._children.pop(live.context.id, ()):
            self._queue(child)

    def fail(self, live: Live, error: str, message: str, *, poisoned: bool = False) -> None:
        """Fail an op, and the ops that wait for its context. The blocks that a `poisoned` op has
        computed are wiped."""
        nodes = [] if poisoned else list(live.sequence.held)
        self._drop(live, poisoned=poisoned)
        self._contexts.abandon(live.context, live.sequence.tokens, nodes)
        self.say(live, Failed, error=error, message=message)
        self._fail_children(live.context)

    def say(self, live: Live, event: Callable[..., Event], **fields: object) -> None:
        """Report an event of this op."""
        self._log.add(live.op.id, live.op.attempt, event, **fields)

    def _accept(self, op: Op) -> None:
        tokens = list(op.tokens or ())
        sequence = Sequence(op, self._arrivals, tokens=tokens, prompt=len(tokens), open=op.open)
        live = Live(sequence, self._contexts.add(op), offset=len(tokens))
        self._arrivals += 1
        self._live[op.id] = live
        self.say(live, Accepted)
        if op.parent is None or self._contexts.named[op.parent].ready:
            self._queue(live)
        else:
            self._children.setdefault(op.parent, []).append(live)

    def _queue(self, live: Live) -> None:
        """The parent is ready: put its tokens before the op's, and queue the sequence."""
        sequence = live.sequence
        if live.op.parent is not None:
            parent = self._contexts.named[live.op.parent]
            self._contexts.touch(parent)
            self._contexts.pin(parent)
            sequence.tokens = [*parent.tokens, *sequence.tokens]
            sequence.prompt = len(sequence.tokens)
        self._scheduler.add(sequence)
        try:
            check_prompt(sequence, self._limits)
        except OpRefused as refusal:
            self.fail(live, refusal.error, str(refusal))

    def _drop(self, live: Live, *, poisoned: bool = False) -> None:
        """Remove an op from the engine without an event."""
        if live.sequence.phase is Phase.HELD and live.op.parent in self._children:
            siblings = self._children[live.op.parent]
            siblings.remove(live)
            if not siblings:
                del self._children[live.op.parent]
        wipe = self._scheduler.drop(live.sequence, poisoned=poisoned)
        if wipe:
            self._backend.wipe(wipe)
        self._leave(live)

    def _fail_children(self, context: Context) -> None:
        """Fail the ops that wait for a context that will never be ready."""
        reason = f"context {context.id} could not be made"
        for child in self._children.pop(context.id, ()):
            self.fail(child, "EngineFailed", reason)

    def _leave(self, live: Live) -> None:
        del self._live[live.op.id]
        self._backend.forget(live.op.id)
