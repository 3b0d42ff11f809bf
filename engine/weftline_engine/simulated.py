"""An engine whose model is a latency profile: the embedded engine's scheduler, context tree and KV
pool decide every step, and instead of computing it the engine waits as long as hardware would.

Its language has the words w0, w1, … and its answers depend on the prompt alone, so that equal
prompts have equal answers whatever the schedule. On an event loop whose clock jumps, hours of
serving take seconds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
import zlib
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from weftline_engine import api
from weftline_engine.bookkeeping.schedule.scheduler import Scheduler, SchedulerConfig, StepPlan
from weftline_engine.bookkeeping.schedule.sequence import Context, Sequence

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a step: the sum of what it takes in any case, for each prompt token computed, for
    each token that one of these attends to, for each sequence that decodes, and for each token in
    flight, whose KV is read."""

    step_s: float = 0.010
    fill_s: float = 0.0005
    sequence_s: float = 0.0008
    token_s: float = 0.0
    attend_s: float = 0.0

    def seconds(self, fill_tokens: int, decoding: int, tokens: int, attended: int = 0) -> float:
        return (
            self.step_s
            + self.fill_s * fill_tokens
            + self.sequence_s * decoding
            + self.token_s * tokens
            + self.attend_s * attended
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """`predicts` False evicts the least recently used. A part of an answer has `part_tokens`.
    `bounds` False announces no profile of its steps."""

    cost: StepCost = StepCost()
    kv_tokens: int = 65_536
    block_size: int = 16
    max_running: int = 64
    step_tokens: int = 512
    beside_tokens: int = 512
    predicts: bool = True
    bounds: bool = True
    words: int = 2048
    part_tokens: int = 1
    model: str = "simulated"
    context_limit: int = 1 << 20


@dataclass(eq=False, slots=True)
class _Live:
    """An op in flight: what it has produced and not yet said, and when its phases ended."""

    sequence: Sequence
    context: Context
    unsaid: list[int] = field(default_factory=list)
    started: float = 0.0
    filled: float = 0.0


class SimulatedEngine:
    """An `api.Engine` in the server's own process. `clock` must be its event loop's."""

    def __init__(
        self, config: SimulatedConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.busy_s = 0.0  # spent in steps
        self.computed = 0  # prompt tokens, each as often as it was
        self._now = clock
        blocks = config.kv_tokens // config.block_size
        self.scheduler = Scheduler(
            SchedulerConfig(
                blocks=blocks,
                block_size=config.block_size,
                max_running=config.max_running,
                step_tokens=config.step_tokens,
                beside_tokens=config.beside_tokens,
                predicts=config.predicts,
            )
        )
        self._limit = min(config.context_limit, blocks * config.block_size)
        self._live: dict[str, _Live] = {}
        self._verbs: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self._out: asyncio.Queue[list[api.Event] | None] = asyncio.Queue()
        self._events: list[api.Event] = []
        self._number = self._arrivals = 0
        self._task: asyncio.Task[None] | None = None
        self._folder: str | None = None

    async def start(self) -> api.Description:
        self._folder = tempfile.mkdtemp(prefix="weftline-simulated-")
        self._task = asyncio.create_task(self._run())
        return api.Description(
            model=self.config.model,
            tokenizer=str(words_tokenizer(Path(self._folder), self.config.words)),
            chat_template=CHAT_TEMPLATE,
            context_limit=self._limit,
            kv_tokens=self.config.kv_tokens,
            max_running=self.config.max_running,
            device="simulated",
            step_profile=self._profile() if self.config.bounds else (),
        )

    def _profile(self) -> tuple[tuple[int, float], ...]:
        """Of sequences of 512 tokens, up to all that fit."""
        counts = (1, max(2, min(self.config.max_running, self.config.kv_tokens // 512)))
        return tuple((n * 512, self.config.cost.seconds(0, n, n * 512)) for n in counts)

    def submit(self, op: api.Op) -> None:
        self._later(self._submit, op)

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None:
        assert isinstance(part, tuple), "this engine announces a tokenizer"
        self._later(self._feed, op, part, last)

    def update(self, op: str, hints: api.Hints) -> None:
        self._later(self._update, op, hints)

    def cancel(self, op: str) -> None:
        self._later(self._cancel, op)

    def retain(self, context: str, retention: api.Retention) -> None:
        self._later(self._retain, context, retention)

    def free(self, context: str) -> None:
        self._later(self._free, context)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._out.get()) is not None:
            yield events

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._out.put_nowait(None)

    def _later(self, verb: Callable[..., None], *arguments: Any) -> None:
        # As across a process boundary: between a step's plan and its end nothing changes.
        self._verbs.append(partial(verb, *arguments))
        self._wake.set()

    async def _run(self) -> None:
        """One step after the other; sleeps while there is nothing to do."""
        rests = True
        while True:
            if rests and not self._verbs:
                self._wake.clear()
                await self._wake.wait()
            while self._verbs:
                self._verbs.popleft()()
            now = self._now()
            plan = self.scheduler.plan(now)
            seconds = self._seconds(plan)
            for chunk in plan.chunks:
                live = self._live[chunk.sequence.op.id]
                live.started = live.started or now
            if seconds:
                await asyncio.sleep(seconds)
                self.busy_s += seconds
            self._apply(plan)
            rests = self.scheduler.rests(plan)
            if self._events:
                self._out.put_nowait(self._events)
                self._events = []
                if not seconds:
                    await asyncio.sleep(0)

    def _seconds(self, plan: StepPlan) -> float:
        if not plan.chunks:
            return 0.0
        decoding = tokens = fill = attended = 0
        for chunk in plan.chunks:
            tokens += chunk.stop
            if chunk.samples and chunk.sequence.filled:
                decoding += 1
            else:
                size = chunk.stop - chunk.start
                fill += size
                attended += size * chunk.start + size * (size + 1) // 2
        self.computed += fill
        return self.config.cost.seconds(fill, decoding, tokens, attended)

    def _apply(self, plan: StepPlan) -> None:
        self.scheduler.apply(plan)
        for chunk in plan.chunks:
            if chunk.samples:
                self._sample(self._live[chunk.sequence.op.id])
        for sequence in [one for one in self.scheduler.running if not one.generates]:
            if sequence.complete:
                live = self._live[sequence.op.id]
                live.filled = self._now()
                self._finish(live, api.FinishReason.FILLED)

    def _sample(self, live: _Live) -> None:
        sequence = live.sequence
        assert sequence.op.sampling is not None
        if not sequence.filled:
            sequence.filled = True
            live.filled = self._now()
        said = array("q", sequence.tokens[-8:]).tobytes()
        sequence.tokens.append(zlib.crc32(said, len(sequence.tokens)) % self.config.words)
        live.unsaid.append(sequence.tokens[-1])
        ended = sequence.output >= sequence.op.sampling.max_tokens
        ended = ended or len(sequence.tokens) >= self._limit
        if ended or len(live.unsaid) >= self.config.part_tokens:
            text = "".join(f"w{token} " for token in live.unsaid)
            first = sequence.output - len(live.unsaid)
            self._emit(live, api.Part, offset=first, tokens=tuple(live.unsaid), text=text)
            live.unsaid = []
        if ended:
            self._finish(live, api.FinishReason.LENGTH)

    def _finish(self, live: _Live, reason: api.FinishReason) -> None:
        sequence = live.sequence
        usage = api.Usage(
            prompt_tokens=sequence.prompt,
            cached_tokens=sequence.cached,
            output_tokens=sequence.output,
            started=live.started,
            filled=live.filled,
        )
        self.scheduler.finish(sequence, live.context)
        del self._live[sequence.op.id]
        self._emit(live, api.Finished, reason=reason, usage=usage)

    def _submit(self, op: api.Op) -> None:
        sequence = Sequence(op, self._arrivals, tokens=list(op.tokens or ()), open=op.open)
        self._arrivals += 1
        sequence.prompt = len(sequence.tokens)
        live = _Live(sequence, Context(op.context, op.salt, op.id, op.attempt))
        if op.parent is not None or sequence.prompt >= self._limit:
            message = f"the simulated engine takes prompts of up to {self._limit} tokens, no parent"
            self._emit(live, api.Failed, error="InvalidRequest", message=message)
            return
        self._live[op.id] = live
        self.scheduler.contexts[op.context] = live.context
        self.scheduler.add(sequence)

    def _feed(self, op: str, part: tuple[int, ...], last: bool) -> None:
        live = self._live.get(op)
        if live is not None and live.sequence.open:
            live.sequence.tokens.extend(part)
            live.sequence.prompt += len(part)
            live.sequence.open = not last

    def _update(self, op: str, hints: api.Hints) -> None:
        if (live := self._live.get(op)) is not None:
            live.sequence.hints = hints
        elif (context := self.scheduler.contexts.get(op)) is not None:
            assert context.ready
            self.scheduler.expect(context, hints.expected_pause or 0.0, hints.kept_tokens)

    def _cancel(self, op: str) -> None:
        live = self._live.pop(op, None)
        if live is not None:
            self.scheduler.drop(live.sequence)
            self.scheduler.contexts.pop(live.context.id, None)
            message = "the call was cancelled"
            self._emit(live, api.Failed, error="Cancelled", message=message)

    def _retain(self, context: str, retention: api.Retention) -> None:
        found = self.scheduler.contexts.get(context)
        if found is None or not found.ready:
            return
        if retention is api.Retention.KEEP and not found.held:
            self.scheduler.restore(found, missing=False)
        elif retention is not api.Retention.KEEP:
            self.scheduler.unpin(found)

    def _free(self, context: str) -> None:
        found = self.scheduler.contexts.get(context)
        if found is not None and found.ready:
            self.scheduler.free(found)

    def _emit(self, live: _Live, event: Callable[..., api.Event], **fields: Any) -> None:
        self._number += 1
        op = live.sequence.op
        self._events.append(
            event(op=op.id, attempt=op.attempt, sequence=self._number, time=self._now(), **fields)
        )


def words_tokenizer(folder: Path, words: int) -> Path:
    """A tokenizer.json that splits at white space; any other word counts as w0."""
    model = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(words)}, "unk_token": "w0"}
    parts = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    text: dict[str, object] = {
        "version": "1.0",
        **dict.fromkeys(parts),
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(text))
    return folder / "tokenizer.json"
