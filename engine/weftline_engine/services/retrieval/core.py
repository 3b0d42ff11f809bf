"""Takes the verbs of an items engine, computes one batch a step, and returns the events.

Synchronous and single-threaded. The host brings the thread and the clock. An op that fails does not
affect the others: a batch that fails is computed again op by op.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from weftline_engine import api
from weftline_engine.services.retrieval.batching import Share, Slots, Waiting, form
from weftline_engine.services.retrieval.result_cache import Key, Results

CHARS_PER_TOKEN = 4  # an estimate: a batch's budget needs no tokenizer
MAX_ITEMS = 100_000  # of one op
MOST_ITEMS, MOST_TOKENS = 32, 8192  # of a batch, where nothing was measured


class InputRefused(Exception):
    """The op cannot be computed, because its input does not fit. The message is for the user."""

    error: ClassVar[str] = "InvalidRequest"  # a type of weftline.errors

    def said(self, before: int = 0) -> str:
        """The message for an op that has had so many items before."""
        return str(self)


class InputTooLong(InputRefused):
    """The text at an index has more tokens than the model takes."""

    error: ClassVar[str] = "ContextTooLong"

    def __init__(self, at: int, length: int, most: int) -> None:
        super().__init__(at, length, most)

    def said(self, before: int = 0) -> str:
        at, length, most = self.args
        return (
            f"text {before + at} has {length} tokens, and this model's maximum context length is "
            f"{most} tokens: split it, or cut it with truncate_prompt_tokens"
        )


class Unavailable(Exception):
    """The database or service that computes the op does not respond. The op may be tried again."""


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of a batch: what the backend computes, and its length in tokens."""

    payload: Any
    tokens: int = 1


class ItemBackend(Protocol):
    """Computes the items of one kind of engine.

    If `pure`, equal items have equal results at any time, so that results may be kept.
    """

    pure: ClassVar[frozenset[str]]

    def describe(self) -> api.Description:
        """The engine's description. `batch_profile` is measured here."""
        ...

    def items(self, op: api.Op) -> Sequence[Item]:
        """The items of an op. Raises Refused for inputs that do not fit."""
        ...

    def fed(self, op: api.Op, values: Sequence[Any]) -> Sequence[Item]:
        """The items of `values`, which an op that streams brings or is fed. Raises Refused."""
        ...

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        """One result for each payload, in order. The payloads are of ops of one kind."""
        ...

    def value(self, kind: str, result: Any) -> object:
        """One item's result as JSON, for an op that streams."""
        ...

    def finish(self, op: api.Op, results: Sequence[Any]) -> object:
        """The JSON value of an op from the results of its items."""
        ...


class _Live:
    """An op that has not ended: its items, the results so far, and the time of its first batch.

    The items of an op that does not stream are computed in the order of their lengths, the longest
    first, so that similar lengths share batches. `done` counts the computed items in that order.
    """

    def __init__(self, op: api.Op, items: Sequence[Item], queued: float) -> None:
        self.op = op
        self.queued = queued
        self.items: list[Item] = []
        self.results: list[Any] = []
        self.order: list[int] = []
        self.tokens: list[int] = []  # of the items, in the order in which they are computed
        self.started: float | None = None
        self.alone = False  # a batch with this op failed: it gets a batch of its own
        self.add(items)
        if not op.streams:
            self.order.sort(key=lambda at: -self.items[at].tokens)
            self.tokens = [self.items[at].tokens for at in self.order]
        self.done = self.reported = op.delivered

    def add(self, items: Sequence[Item]) -> None:
        """Add items after those so far."""
        self.order += range(len(self.items), len(self.items) + len(items))
        self.items += items
        self.tokens += [item.tokens for item in items]
        self.results += [None] * len(items)

    @property
    def ended(self) -> bool:
        """Whether all items are computed and no more can come."""
        return self.done >= len(self.items) and not self.op.open

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.op.id, self.op.hints, self.tokens, self.done, self.queued)

    def share(self, share: Share) -> list[int]:
        """The items of a share, by their numbers in the op."""
        return self.order[share.start : share.stop]


class ItemsCore:
    """The ops of one items engine. `most_items` and `most_tokens` bound a batch.

    `kept` results of equal items are not computed again; 0 switches that off.
    """

    def __init__(
        self,
        backend: ItemBackend,
        *,
        most_items: int = MOST_ITEMS,
        most_tokens: int = MOST_TOKENS,
        kept: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._slots = Slots(most_items, most_tokens)
        self._results = Results() if kept is None else Results(kept)
        self._now = clock
        self._live: dict[str, _Live] = {}
        self._news: list[Callable[[int], api.Event]] = []
        self._sequence = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to report."""
        return bool(self._news) or any(
            one.ended or one.done < len(one.items) for one in self._live.values()
        )

    def submit(self, op: api.Op) -> None:
        """Queue an op. One with inputs that do not fit fails in the next step."""
        self._tell(api.Accepted, op)
        try:
            if op.streams:
                items = self._backend.fed(op, _listed(op.inputs.get("items")))
            else:
                items = self._backend.items(op)
        except InputRefused as reason:
            self._fail(op, reason.error, reason.said())
            return
        self._live[op.id] = _Live(op, items, self._now())

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        """Add items to an op that streams. Items that it already has are skipped."""
        live = self._live.get(op)
        if live is None or not live.op.open:
            return  # it was cancelled, or it has failed
        try:
            values = _listed(part)[max(0, len(live.items) - offset) :]
            if offset > len(live.items):
                raise InputRefused(
                    f"items from {offset} on leave a gap after item {len(live.items)}"
                )
            if len(live.items) + len(values) > MAX_ITEMS:
                raise InputRefused(f"{live.op.kind} takes at most {MAX_ITEMS} items")
            live.add(self._backend.fed(live.op, values))
        except InputRefused as reason:
            del self._live[op]
            self._fail(live.op, reason.error, reason.said(len(live.items)))
            return
        live.op = replace(live.op, open=not last)

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
        for live in [one for one in self._live.values() if one.ended]:
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
        waiting = [one for one in self._live.values() if one.done < len(one.items)]
        first = form((one.waiting for one in waiting), Slots(1, 1))
        if not first:
            return []
        head = self._live[first[0].op]
        if head.alone:
            return [Share(head.op.id, head.done, len(head.items))]
        fitting = (o.waiting for o in waiting if o.op.kind == head.op.kind and not o.alone)
        return form(fitting, self._slots)

    def _compute(self, shares: list[Share]) -> None:
        """Compute a batch. Equal items of a tenant are computed once, known ones not at all."""
        now = self._now()
        kind = self._live[shares[0].op].op.kind
        pure = kind in self._backend.pure
        missing: dict[Key, Any] = {}
        places: list[tuple[_Live, int, Key]] = []
        for share in shares:
            live = self._live[share.op]
            live.started = now if live.started is None else live.started
            for at in live.share(share):
                payload = live.items[at].payload
                key = Results.key(live.op.salt, kind, payload) if pure else (share.op, kind, at)
                if pure:
                    live.results[at] = self._results.get(key)
                if live.results[at] is None:
                    missing[key] = payload
                    places.append((live, at, key))
        made = self._computed(kind, missing, shares)
        if made is None:
            return
        for live, at, key in places:
            live.results[at] = made[key]
            if pure:
                self._results.put(key, made[key])
        for share in shares:
            live = self._live[share.op]
            live.done = share.stop
            self._report(live)

    def _computed(
        self, kind: str, missing: dict[Any, Any], shares: list[Share]
    ) -> dict[Any, Any] | None:
        """The results of the missing items by their keys; None if the batch failed."""
        if not missing:
            return {}
        try:
            results = self._backend.compute(kind, list(missing.values()))
        except InputRefused as reason:
            self._broken(shares, reason.error, reason.said())
        except Unavailable as reason:
            self._broken(shares, "EngineUnavailable", str(reason), retryable=True)
        except Exception as error:  # a library's error: it ends the op that causes it, no other
            self._broken(shares, "EngineFailed", f"{kind} failed: {error}")
        else:
            return dict(zip(missing, results, strict=True))
        return None

    def _report(self, live: _Live) -> None:
        """Report the new results of an op that streams."""
        if live.op.streams and live.done > live.reported:
            new = live.results[live.reported : live.done]
            values = tuple(self._backend.value(live.op.kind, one) for one in new)
            self._tell(api.Items, live.op, offset=live.reported, values=values)
            live.reported = live.done

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
            live.alone = True

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
            value=None if live.op.streams else self._backend.finish(live.op, live.results),
        )

    def _fail(self, op: api.Op, error: str, message: str, *, retryable: bool = False) -> None:
        self._tell(api.Failed, op, error=error, message=message, retryable=retryable)

    def _tell(self, event: type[api.Event], op: api.Op, **fields: Any) -> None:
        now = self._now()
        self._news.append(
            lambda number: event(op=op.id, attempt=op.attempt, sequence=number, time=now, **fields)
        )


def _listed(items: object) -> list[Any]:
    """The items of an op that streams. Raises Refused unless they are a list."""
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise InputRefused(f"an op that streams takes a list of at most {MAX_ITEMS} items")
    return items
