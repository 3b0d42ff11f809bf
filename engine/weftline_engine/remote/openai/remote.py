"""The base of engines behind HTTP: a task per op, events, cancellation, retries, the breaker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TypedDict

from weftline_engine import api
from weftline_engine.bookkeeping.output import StopScanner
from weftline_engine.remote.openai.breaker import Breaker, BreakerConfig, BreakerState
from weftline_engine.remote.openai.causes import Causes
from weftline_engine.remote.openai.endpoint import LONGEST_PAUSE_S, Endpoint, EndpointError
from weftline_engine.remote.openai.surrogates import SurrogateJoiner

log = logging.getLogger("weftline.openai")

MOST_WAITS = 3  # how often an op waits for a Retry-After before it fails
PAUSE_S = 0.2  # seconds before an op fails as retryable; doubles with each attempt


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts as the endpoint reports them. `output` is None if it does not count them.
    `lost` are tokens that were computed again, because a state is kept at few places."""

    prompt: int
    cached: int = 0
    output: int | None = None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """Seconds that the endpoint took for the prompt, and then from the first token to the last."""

    fill_s: float
    generate_s: float


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """The part of an op's answer that one event of the endpoint adds."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    reason: api.FinishReason | None = None
    counts: TokenCounts | None = None
    times: AnswerTimes | None = None
    stopped_by: str = ""


@dataclass(slots=True)
class OpAnswer:
    """The answer of an op so far. Times are seconds of the monotonic clock.

    `texts` are kept only for an op that may pause.
    """

    started: float
    filled: float | None = None  # time of the first piece
    tokens: int = 0
    pieces: int = 0
    reason: api.FinishReason | None = None
    stopped_by: str = ""
    counts: TokenCounts | None = None
    texts: list[str] = field(default_factory=list)

    def came(self, times: AnswerTimes | None, now: float) -> None:
        """Note that a piece came. The prompt was computed before the first one, unless the endpoint
        tells its `times`: then an answer that came whole has its phases, too."""
        if self.filled is None:
            self.filled = now if times is None else max(self.started, now - times.generate_s)
        if times is not None:
            self.started = max(self.started, self.filled - times.fill_s)


class _Head(TypedDict):
    op: str
    attempt: int
    sequence: int
    time: float


class Outbox:
    """Numbers an engine's events and queues them for its reader."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[list[api.Event] | api.EngineDied | None] = asyncio.Queue()
        self._batch: list[api.Event] = []  # the last list in the queue; empty if it was taken
        self._sequence = 0

    def head(self, op: str, attempt: int) -> _Head:
        """Return the common fields of the next event."""
        self._sequence += 1
        return _Head(op=op, attempt=attempt, sequence=self._sequence, time=time.monotonic())

    def put(self, event: api.Event) -> None:
        """Add `event`. Several events in one turn of the event loop wake the reader once."""
        self._batch.append(event)
        if len(self._batch) == 1:
            self._queue.put_nowait(self._batch)

    def end(self, error: api.EngineDied | None = None) -> None:
        """End `events`, with `error` if there is one."""
        self._queue.put_nowait(error)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        """Yield lists of events until `end`. Raises EngineDied if `end` was given one."""
        while (events := await self._queue.get()) is not None:
            if isinstance(events, api.EngineDied):
                raise events
            self._batch = []
            yield events


class RemoteEngine:
    """The part of an `api.Engine` that is the same for all endpoints.

    A subclass describes the endpoint in `start`, and yields the answer to an op in `_pieces`. If it
    announces RETENTION, it sets `_pauses`, and its ops end with Paused at a tool call.
    """

    def __init__(self, breaker: BreakerConfig) -> None:
        self._breaker = Breaker(breaker)
        self._endpoint: Endpoint | None = None
        self._outbox = Outbox()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by id of the op
        self._ops: dict[str, api.Op] = {}  # ops that have not ended, by id
        self._causes = Causes()
        self._pauses = False
        self._closing: asyncio.Task[None] | None = None  # allows calls again after a pause

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint. It exists after `start`."""
        assert self._endpoint is not None, "a verb before start"
        return self._endpoint

    def submit(self, op: api.Op) -> None:
        self._causes.saw(op)
        self._ops[op.id] = op
        self._spawn(op)

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        """Never called: this engine does not announce FEED."""
        raise AssertionError("this engine takes whole prompts")

    def update(self, op: str, hints: api.Hints) -> None:
        """Do nothing: an endpoint takes hints only with the request."""

    def cancel(self, op: str) -> None:
        """Close the op's request, which cancels it at the endpoint."""
        if (found := self._ops.pop(op, None)) is None:
            return
        if task := self._tasks.pop(op, None):
            task.cancel()
        self.fail(found, "Cancelled", "the call was cancelled")

    def retain(self, context: str, retention: api.Retention) -> None:
        """Do nothing: the endpoint manages its own KV cache."""

    def free(self, context: str) -> None:
        """Do nothing: the endpoint manages its own KV cache."""

    def events(self) -> AsyncIterator[list[api.Event]]:
        """Yield events until `close`. Raises EngineDied if the engine ends by itself."""
        return self._outbox.events()

    async def close(self) -> None:
        for task in (*self._tasks.values(), *filter(None, [self._closing])):
            task.cancel()
        if self._endpoint is not None:
            await self._endpoint.close()
        self._outbox.end()

    def _pieces(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        """Yield the answer to `op`, piece by piece. Raises EndpointError."""
        raise NotImplementedError

    def _spawn(self, op: api.Op) -> None:
        task = asyncio.create_task(self._run(op))
        self._tasks[op.id] = task
        task.add_done_callback(lambda _: self._ended(op, task))

    def _ended(self, op: api.Op, task: asyncio.Task[None]) -> None:
        if self._tasks.get(op.id) is task:
            del self._tasks[op.id]
            self._ops.pop(op.id, None)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # The op must end after any error, or its session would wait forever.
            log.error("a request of op %s failed", op.id, exc_info=bug)
            self.fail(op, "EngineFailed", f"the request failed ({type(bug).__name__})")

    async def _run(self, op: api.Op) -> None:
        """Send the op, again after each Retry-After, until it is answered or fails."""
        waits = 0
        while True:
            answer = OpAnswer(time.monotonic())
            try:
                await self._answer(op, answer)
            except EndpointError as error:
                if error.broken:
                    cause = self._causes.of(op) if error.by_prompt else None
                    self._count_failure(str(error), cause)
                delivered = answer.pieces > 0
                pause = error.retry_after_s
                if pause is None or delivered or waits == MOST_WAITS or pause > LONGEST_PAUSE_S:
                    await self._fail_with(op, error, delivered)
                    return
                waits += 1
                await asyncio.sleep(pause)
            else:
                if self._breaker.succeeded():
                    self._announce(available=True)
                return

    async def _answer(self, op: api.Op, answer: OpAnswer) -> None:
        """Send one request and emit its pieces as they arrive, then Finished or Paused."""
        pause_on = op.sampling.pause_on if self._pauses and op.sampling else ()
        scanner = None
        if op.sampling is not None and op.sampling.block and op.sampling.stop:
            scanner = StopScanner(op.sampling.stop, op.sampling.block)
        async for piece in _checked(self._pieces(op), scanner):
            answer.came(piece.times, time.monotonic())
            answer.counts = piece.counts or answer.counts
            if piece.text or piece.tokens:
                part = api.Part(
                    **self._outbox.head(op.id, op.attempt),
                    offset=answer.tokens,
                    tokens=piece.tokens,
                    text=piece.text,
                    logprobs=piece.logprobs,
                    top_tokens=piece.top_tokens,
                    top_logprobs=piece.top_logprobs,
                )
                answer.tokens += len(piece.tokens)
                answer.pieces += 1
                if pause_on:
                    answer.texts.append(piece.text)
                self._outbox.put(part)
            answer.reason = piece.reason or answer.reason
            answer.stopped_by = piece.stopped_by or answer.stopped_by
        if answer.reason is None:
            raise EndpointError(
                "EngineFailed",
                "the endpoint ended its stream before the answer was complete",
                retryable=True,
                broken=True,
            )
        counts = answer.counts or TokenCounts(_guess(op))
        made = answer.tokens or answer.pieces
        usage = api.Usage(
            prompt_tokens=counts.prompt,
            cached_tokens=counts.cached,
            output_tokens=made if counts.output is None else counts.output,
            started=answer.started,
            filled=answer.filled or time.monotonic(),
            lost_tokens=counts.lost,
            stopped_by=answer.stopped_by,
        )
        head = self._outbox.head(op.id, op.attempt)
        called = None
        if answer.reason is api.FinishReason.STOP:
            text = "".join(answer.texts)
            called = next((one for one in pause_on if one and one in text), None)
        if called is not None:
            self._outbox.put(api.Paused(**head, reason=called, usage=usage))
        else:
            self._outbox.put(api.Finished(**head, reason=answer.reason, usage=usage))

    async def _fail_with(self, op: api.Op, error: EndpointError, delivered: bool) -> None:
        """Fail the op. The server knows which readers have a part of the answer, and so whether the
        op may run again."""
        message = str(error)
        if delivered:
            message += "; part of the answer had been delivered"
        again = error.retryable and error.retry_after_s is None
        if again and self._breaker.state is not BreakerState.OPEN:
            await asyncio.sleep(PAUSE_S * 2**op.attempt)
        self.fail(op, error.error, message, retryable=again)

    def _count_failure(self, reason: str, cause: str | None = None) -> None:
        if not self._breaker.failed(time.monotonic(), cause):
            return
        self._announce(available=False, reason=reason)
        self._closing = asyncio.create_task(self._wait_for_endpoint())

    async def _wait_for_endpoint(self) -> None:
        """After the breaker's pause, allow calls again. The first result closes or opens it."""
        await asyncio.sleep(self._breaker.until - time.monotonic())
        self._breaker.try_again(max(time.monotonic(), self._breaker.until))
        self._announce(available=True)

    def fail(self, op: api.Op, error: str, message: str, *, retryable: bool = False) -> None:
        """Emit Failed; `error` names a type of weftline.errors."""
        head = self._outbox.head(op.id, op.attempt)
        self._outbox.put(api.Failed(**head, error=error, message=message, retryable=retryable))

    def _announce(self, *, available: bool, reason: str = "") -> None:
        head = self._outbox.head("", 0)
        self._outbox.put(api.Availability(**head, available=available, reason=reason))


async def _checked(
    pieces: AsyncIterator[AnswerPiece], scanner: StopScanner | None
) -> AsyncIterator[AnswerPiece]:
    """The pieces in whole characters, up to a stop string behind the thoughts. Endpoints look for
    stop strings in thoughts, too, so they are not told of them."""
    joiner = SurrogateJoiner()
    async for piece in pieces:
        text = joiner.push(piece.text)
        if piece.reason is not None:
            text += joiner.finish()
        if scanner is not None:
            text = scanner.push(text)
            if scanner.stopped:
                stop = api.FinishReason.STOP
                yield replace(piece, text=text, reason=stop, stopped_by=scanner.stopped_by)
                break
            if piece.reason is not None:
                text += scanner.finish()
        yield piece if text == piece.text else replace(piece, text=text)
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()  # the endpoint goes on until its connection is closed


def _guess(op: api.Op) -> int:
    """Estimate a prompt's tokens for an endpoint that does not count: four characters a token."""
    if op.tokens is not None:
        return len(op.tokens)
    texts = (op.text or "",) if op.chat is None else op.chat.texts
    return sum(map(len, texts)) // 4 + 1
