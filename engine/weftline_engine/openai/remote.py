"""What engines behind HTTP share: a task for each op, events, cancel, retries, and the breaker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypedDict

from weftline_engine import api
from weftline_engine.openai.breaker import Breaker, BreakerConfig, BreakerState
from weftline_engine.openai.endpoint import LONGEST_PAUSE_S, Endpoint, EndpointError

MOST_WAITS = 3  # for an endpoint that says when to come again
PAUSE_S = 0.2  # before an op is given back for another attempt; doubles with each


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens, as an endpoint counts them; `output` None where it does not."""

    prompt: int
    cached: int = 0
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of an endpoint adds to an answer."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    reason: api.FinishReason | None = None
    counts: Counts | None = None


@dataclass(slots=True)
class _Answer:
    """An op's answer so far."""

    started: float
    filled: float | None = None
    tokens: int = 0
    pieces: int = 0
    reason: api.FinishReason | None = None
    counts: Counts | None = None


class _Head(TypedDict):
    op: str
    attempt: int
    sequence: int
    time: float


class RemoteEngine:
    """The half of an `api.Engine` that does not depend on what the endpoint speaks.

    A subclass describes the endpoint in `start` and turns an op into pieces in `_pieces`.
    """

    def __init__(self, breaker: BreakerConfig) -> None:
        self._breaker = Breaker(breaker)
        self._endpoint: Endpoint | None = None
        self._events: asyncio.Queue[list[api.Event] | api.EngineDied | None] = asyncio.Queue()
        self._batch: list[api.Event] = []  # in the queue, where it is not empty
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ops: dict[str, api.Op] = {}  # that have not ended
        self._closing: asyncio.Task[None] | None = None
        self._sequence = 0

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None, "a verb before start"
        return self._endpoint

    def submit(self, op: api.Op) -> None:
        self._ops[op.id] = op
        self._spawn(op)

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None:
        """Only an engine that announces FEED is fed."""
        raise AssertionError("this engine takes whole prompts")

    def update(self, op: str, hints: api.Hints) -> None:
        """An endpoint takes hints with a request, and none after."""

    def cancel(self, op: str) -> None:
        """Close the request, which is how an endpoint learns of it."""
        if (found := self._ops.pop(op, None)) is None:
            return
        if task := self._tasks.pop(op, None):
            task.cancel()
        self.fail(found, "Cancelled", "the call was cancelled")

    def retain(self, context: str, retention: api.Retention) -> None:
        """Endpoints decide alone what they keep."""

    def free(self, context: str) -> None:
        """Endpoints decide alone what they keep."""

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._events.get()) is not None:
            if isinstance(events, api.EngineDied):
                raise events
            self._batch = []
            yield events

    async def close(self) -> None:
        for task in (*self._tasks.values(), *filter(None, [self._closing])):
            task.cancel()
        if self._endpoint is not None:
            await self._endpoint.close()
        self._events.put_nowait(None)

    def _pieces(self, op: api.Op) -> AsyncIterator[Piece]:
        """The answer to `op`. Raises EndpointError."""
        raise NotImplementedError

    def _spawn(self, op: api.Op) -> None:
        task = asyncio.create_task(self._run(op))
        self._tasks[op.id] = task
        task.add_done_callback(lambda _: self._ended(op, task))

    def _ended(self, op: api.Op, task: asyncio.Task[None]) -> None:
        if self._tasks.get(op.id) is task:
            del self._tasks[op.id]
            self._ops.pop(op.id, None)

    async def _run(self, op: api.Op) -> None:
        waits = 0
        while True:
            answer = _Answer(time.monotonic())
            try:
                await self._answer(op, answer)
            except EndpointError as error:
                if error.broken:
                    self._count_failure(str(error))
                delivered = answer.pieces > 0
                pause = error.retry_after_s
                if pause is None or delivered or waits == MOST_WAITS or pause > LONGEST_PAUSE_S:
                    await self._give_back(op, error, delivered)
                    return
                waits += 1
                await asyncio.sleep(pause)
            else:
                if self._breaker.succeeded():
                    self._say(available=True)
                return

    async def _answer(self, op: api.Op, answer: _Answer) -> None:
        """Pass the pieces of one request on as they come, and its end."""
        async for piece in self._pieces(op):
            if answer.filled is None:
                answer.filled = time.monotonic()
            answer.counts = piece.counts or answer.counts
            if piece.text or piece.tokens:
                part = api.Part(
                    **self._head(op),
                    offset=answer.tokens,
                    tokens=piece.tokens,
                    text=piece.text,
                    logprobs=piece.logprobs,
                    top_tokens=piece.top_tokens,
                    top_logprobs=piece.top_logprobs,
                )
                answer.tokens += len(piece.tokens)
                answer.pieces += 1
                self._emit(part)
            answer.reason = piece.reason or answer.reason
        if answer.reason is None:
            raise EndpointError(
                "EngineFailed",
                "the endpoint ended its stream before the answer was complete",
                retryable=True,
                broken=True,
            )
        counts = answer.counts or Counts(_guess(op))
        made = answer.tokens or answer.pieces
        usage = api.Usage(
            prompt_tokens=counts.prompt,
            cached_tokens=counts.cached,
            output_tokens=made if counts.output is None else counts.output,
            started=answer.started,
            filled=answer.filled or time.monotonic(),
        )
        self._emit(api.Finished(**self._head(op), reason=answer.reason, usage=usage))

    async def _give_back(self, op: api.Op, error: EndpointError, delivered: bool) -> None:
        message = str(error)
        if delivered:
            message += "; part of the answer had been delivered, so it was not asked again"
        again = error.retryable and not delivered and error.retry_after_s is None
        if again and self._breaker.state is not BreakerState.OPEN:
            await asyncio.sleep(PAUSE_S * 2**op.attempt)
        self.fail(op, error.error, message, retryable=again)

    def _count_failure(self, reason: str) -> None:
        if not self._breaker.failed(time.monotonic()):
            return
        self._say(available=False, reason=reason)
        self._closing = asyncio.create_task(self._wait_for_endpoint())

    async def _wait_for_endpoint(self) -> None:
        """After the breaker's pause, let calls through again; the first one decides."""
        await asyncio.sleep(self._breaker.until - time.monotonic())
        self._breaker.try_again(max(time.monotonic(), self._breaker.until))
        self._say(available=True)

    def fail(self, op: api.Op, error: str, message: str, *, retryable: bool = False) -> None:
        head = self._head(op)
        self._emit(api.Failed(**head, error=error, message=message, retryable=retryable))

    def _say(self, *, available: bool, reason: str = "") -> None:
        self._sequence += 1
        self._emit(
            api.Availability(
                op="",
                attempt=0,
                sequence=self._sequence,
                time=time.monotonic(),
                available=available,
                reason=reason,
            )
        )

    def _head(self, op: api.Op) -> _Head:
        self._sequence += 1
        return _Head(op=op.id, attempt=op.attempt, sequence=self._sequence, time=time.monotonic())

    def _emit(self, event: api.Event) -> None:
        """Tell it with all else that this turn of the loop brings: who hears is woken once."""
        self._batch.append(event)
        if len(self._batch) == 1:
            self._events.put_nowait(self._batch)


def _guess(op: api.Op) -> int:
    """Tokens of a prompt whose endpoint does not count: ids, or four characters a token."""
    if op.tokens is not None:
        return len(op.tokens)
    texts = (op.text or "", *(content for _, content in op.messages or ()))
    return sum(map(len, texts)) // 4 + 1
