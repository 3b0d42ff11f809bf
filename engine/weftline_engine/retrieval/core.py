"""Takes the verbs of an items engine, computes one batch a step, and returns the events.

Synchronous and single-threaded. The host brings the thread and the clock. An op that fails does not
affect the others: a batch that fails is computed again op by op.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from weftline_engine import api
from weftline_engine.retrieval.batching import Share, Waiting, form

CHARS_PER_TOKEN = 4  # an estimate: a batch's budget needs no tokenizer


class Refused(Exception):
    """The op cannot be computed, because its input does not fit. The message is for the user."""


class Unavailable(Exception):
    """What computes the op does not answer now. The op may be tried again."""


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of a batch: what the backend computes, and its length in tokens."""

    payload: Any
    tokens: int = 1


class Backend(Protocol):
    """Computes the items of one kind of engine."""

    def describe(self) -> api.Description:
        """The engine's description. `batch_profile` is measured here."""
        ...

    def items(self, op: api.Op) -> Sequence[Item]:
        """The items of an op. Raises Refused for inputs that do not fit."""
        ...

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        """One result for each payload, in order. The payloads are of ops of one kind."""
        ...

    def finish(self, op: api.Op, results: Sequence[Any]) -> object:
        """The JSON value of an op from the results of its items."""
        ...


@dataclass(slots=True)
class _Live:
    """An op in hand: its items, the results so far, and the time of its first batch."""

    op: api.Op
    items: Sequence[Item]
    tokens: tuple[int, ...]
    results: list[Any] = field(default_factory=list)
    started: float | None = None
    alone: bool = False  # a batch with this op failed: it gets a batch of its own

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.op.id, self.op.hints, self.tokens, len(self.results))


class ItemsCore:
    """The ops of one items engine. `most_items` and `most_tokens` bound a batch."""

    def __init__(
        self,
        backend: Backend,
        *,
        most_items: int = 32,
        most_tokens: int = 8192,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._most = most_items, most_tokens
        self._now = clock
        self._live: dict[str, _Live] = {}
        self._news: list[Callable[[int], api.Event]] = []
        self._sequence = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to report."""
        return bool(self._live or self._news)

    def submit(self, op: api.Op) -> None:
        """Queue an op. One with inputs that do not fit fails in the next step."""
        self._tell(api.Accepted, op)
        try:
            items = self._backend.items(op)
        except Refused as reason:
            self._fail(op, "InvalidRequest", str(reason))
            return
        self._live[op.id] = _Live(op, items, tuple(item.tokens for item in items))

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None:
        """Items come with their op; nothing is fed."""

    def update(self, op: str, hints: api.Hints) -> None:
        """Take the op's new hints for the next batch."""
        if (live := self._live.get(op)) is not None:
            live.op = replace(live.op, hints=hints)

    def cancel(self, op: str) -> None:
        """Drop the op and its results."""
        if (live := self._live.pop(op, None)) is not None:
            self._fail(live.op, "Cancelled", "the op was cancelled")

    def retain(self, context: str, retention: api.Retention) -> None:
        """There are no contexts."""

    def free(self, context: str) -> None:
        """There are no contexts."""

    def step(self) -> list[api.Event]:
        """Compute one batch. Return all events since the last step."""
        shares = self._form()
        if shares:
            self._compute(shares)
        for live in [one for one in self._live.values() if len(one.results) == len(one.items)]:
            del self._live[live.op.id]
            self._end(live)
        events = []
        for make in self._news:
            self._sequence += 1
            events.append(make(self._sequence))
        self._news.clear()
        return events

    def _form(self) -> list[Share]:
        """The next batch: ops of one kind, that of the most urgent op."""
        waiting = [one for one in self._live.values() if len(one.results) < len(one.items)]
        first = form((one.waiting for one in waiting), 1, 1)
        if not first:
            return []
        head = self._live[first[0].op]
        if head.alone:
            return [Share(head.op.id, len(head.results), len(head.items))]
        fitting = (o.waiting for o in waiting if o.op.kind == head.op.kind and not o.alone)
        return form(fitting, *self._most)

    def _compute(self, shares: list[Share]) -> None:
        now = self._now()
        payloads: list[Any] = []
        for share in shares:
            live = self._live[share.op]
            live.started = now if live.started is None else live.started
            payloads += [item.payload for item in live.items[share.start : share.stop]]
        kind = self._live[shares[0].op].op.kind
        try:
            results = self._backend.compute(kind, payloads)
        except Refused as reason:
            self._broken(shares, "InvalidRequest", str(reason))
            return
        except Unavailable as reason:
            self._broken(shares, "EngineUnavailable", str(reason), retryable=True)
            return
        except Exception as error:  # a library's error: it ends the op that causes it, no other
            self._broken(shares, "EngineFailed", f"{kind} failed: {error}")
            return
        at = 0
        for share in shares:
            count = share.stop - share.start
            self._live[share.op].results += results[at : at + count]
            at += count

    def _broken(
        self, shares: list[Share], error: str, message: str, *, retryable: bool = False
    ) -> None:
        """Fail the op of a batch that failed; compute several ops again, each alone."""
        if len(shares) == 1:
            live = self._live.pop(shares[0].op)
            self._fail(live.op, error, message, retryable=retryable)
            return
        for share in shares:
            live = self._live[share.op]
            live.alone, live.results = True, []

    def _end(self, live: _Live) -> None:
        now = self._now()
        started = now if live.started is None else live.started
        usage = api.Usage(
            prompt_tokens=sum(live.tokens),
            cached_tokens=0,
            output_tokens=0,
            started=started,
            filled=started,
        )
        self._tell(
            api.Finished,
            live.op,
            reason=api.FinishReason.STOP,
            usage=usage,
            value=self._backend.finish(live.op, live.results),
        )

    def _fail(self, op: api.Op, error: str, message: str, *, retryable: bool = False) -> None:
        self._tell(api.Failed, op, error=error, message=message, retryable=retryable)

    def _tell(self, event: type[api.Event], op: api.Op, **fields: Any) -> None:
        now = self._now()
        self._news.append(
            lambda number: event(op=op.id, attempt=op.attempt, sequence=number, time=now, **fields)
        )
