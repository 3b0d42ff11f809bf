"""An engine whose model is a latency profile. The bookkeeping of the embedded engine decides every
step; instead of computing it, this engine waits as long as hardware would.

The model's language has the words w0, w1, … and its answers depend on the prompt alone, so equal
prompts have equal answers, whatever the schedule. On an event loop whose clock jumps, hours of
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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from weftline_engine import api
from weftline_engine.bookkeeping.book import Book
from weftline_engine.bookkeeping.op_checks import EngineLimits
from weftline_engine.bookkeeping.op_table import Backend, Live
from weftline_engine.bookkeeping.output import Sampled
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig, StepPlan
from weftline_engine.bookkeeping.schedule.step_seconds import ItlLimit, StepSeconds, attended_by
from weftline_engine.pretend.host_tier import HostOrder, HostTier, Loader, keys

# The words of an answer depend on the prompt alone.
_LACKS = {api.Capability.CONSTRAINTS, api.Capability.LOGIT_BIAS}
# Answers whose last token's time is remembered. The oldest are those that have ended.
MOST_TIMED = 1024
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost(StepSeconds):
    """The seconds of a step. A token is copied to host memory or back in `copy_s`."""

    step_s: float = 0.010
    fill_s: float = 0.0005
    sequence_s: float = 0.0008
    copy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """`predicts` False evicts the least recently used block. The parts of an answer have
    `part_tokens`. `bounds` False announces no step profile. With `itl_s` prompts leave at most so
    many seconds between two tokens of an answer. With `any_words` a prompt may have any words, and
    each is a token; without it all but w0, w1, … count as w0.

    Copies of `host_tokens` fit into host memory. With a `host_order` they are vLLM's: each block is
    copied when it was computed (`host_tier`). Else they are those that the server asks for. An op
    whose prompt ends with the word of one of `tools` (see `asking`), and which may pause, ends its
    answer with a call of that tool. An engine with tools knows only its own words.
    """

    cost: StepCost = StepCost()
    kv_tokens: int = 65_536
    block_size: int = 16
    max_running: int = 64
    step_tokens: int = 512
    beside_tokens: int = 512
    predicts: bool = True
    bounds: bool = True
    itl_s: float | None = None
    any_words: bool = False
    words: int = 2048
    part_tokens: int = 1
    model: str = "simulated"
    context_limit: int = 1 << 20
    host_tokens: int = 0
    host_order: HostOrder | None = None
    tools: tuple[str, ...] = ()


class Words:
    """A `Detokenizer` whose tokens are words. Behind the `count` plain ones are calls of tools."""

    def __init__(self, count: int = 1 << 62, tools: Sequence[str] = ()) -> None:
        self._count = count
        self._calls = [calling(tool) for tool in tools]

    def stream(self, prompt: Sequence[int]) -> Words:
        return self

    def push(self, tokens: Sequence[int]) -> str:
        return "".join(f"{self._word(token)} " for token in tokens)

    def _word(self, token: int) -> str:
        return self._calls[token - self._count] if token >= self._count else f"w{token}"

    def finish(self) -> str:
        return ""


def calling(tool: str) -> str:
    """The word with which an answer calls a tool."""
    return f'<tool_call>{{"name":"{tool}","arguments":{{}}}}</tool_call>'


def asking(tool: str) -> str:
    """The word at the end of a prompt whose answer calls a tool."""
    return f"asks-for-{tool}"


class Copies(Backend):
    """Counts the blocks that are copied to host memory and back."""

    def __init__(self) -> None:
        self.blocks = 0

    def save(self, blocks: Sequence[int]) -> object:
        """`Storage.save`"""
        self.blocks += len(blocks)
        return ()

    def restore(self, saved: object, pairs: Sequence[tuple[int, int]]) -> bool:
        """`Storage.restore`"""
        self.blocks += len(pairs)
        return True

    def take_blocks(self) -> int:
        """The blocks since the last call."""
        found, self.blocks = self.blocks, 0
        return found


class SimulatedEngine:
    """An `api.Engine` in the server's own process. `clock` must be the event loop's."""

    def __init__(
        self, config: SimulatedConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.busy_s = 0.0  # spent in steps
        self.computed = 0  # prompt tokens, each as often as it was computed
        self.between = array("d")  # seconds between two tokens of an answer
        self._said: dict[str, float] = {}  # when the running ops got their last tokens
        self._clock = clock
        blocks = config.kv_tokens // config.block_size
        limit = min(config.context_limit, blocks * config.block_size)
        self._copies = Copies()
        self.book = Book(
            SchedulerConfig(
                blocks=blocks,
                block_size=config.block_size,
                max_running=config.max_running,
                step_tokens=config.step_tokens,
                beside_tokens=config.beside_tokens,
                predicts=config.predicts,
            ),
            EngineLimits(context=limit, vocabulary=config.words + self._more_words()),
            Words(config.words, config.tools) if config.tools else Words(),
            self._copies,
            clock=clock,
            part_tokens=config.part_tokens,
        )
        if config.itl_s is not None:
            self.book.scheduler.keep(ItlLimit(config.cost, config.itl_s))
        self._tier: HostTier | None = None
        if config.host_order is not None:
            self._tier = HostTier(config.host_tokens // config.block_size, config.host_order)
            block_s = config.cost.copy_s * config.block_size
            self._loader = Loader(self._tier, self.book.scheduler.tree, block_s)
        self._verbs: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self._out: asyncio.Queue[list[api.Event] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._folder: str | None = None

    async def start(self) -> api.Description:
        config = self.config
        self._task = asyncio.create_task(self._run())
        return api.Description(
            model=config.model,
            tokenizer=self._tokenizer(),
            chat_template=CHAT_TEMPLATE,
            context_limit=self.book.limits.context,
            kv_tokens=self.config.kv_tokens,
            host_tokens=0 if config.host_order is None else config.host_tokens,
            max_running=self.config.max_running,
            device="simulated",
            vocabulary=self.book.limits.vocabulary,
            capabilities=tuple(one for one in api.Capability if one not in _LACKS),
            constraints=(),
            fill_tokens=config.block_size,
            step_profile=self._profile() if config.bounds else (),
            kv_costs=api.KvCosts(
                step_s=config.cost.step_s,
                fill_s=config.cost.fill_s,
                chunk=config.step_tokens,
                copy_s=config.cost.copy_s,
                host_tokens=config.host_tokens,
            ),
        )

    def _tokenizer(self) -> str:
        words = self.config.words
        if self.config.any_words:
            return f"{api.WORDS}{words}"
        self._folder = tempfile.mkdtemp(prefix="weftline-simulated-")
        return str(words_tokenizer(Path(self._folder), words, self.config.tools))

    def _more_words(self) -> int:
        """Token ids beyond those of the plain words."""
        assert not (self.config.any_words and self.config.tools), "their ids would be the same"
        return api.OTHER_WORDS if self.config.any_words else 2 * len(self.config.tools)

    def _profile(self) -> tuple[tuple[int, float], ...]:
        """Of sequences of 512 tokens: one, and as many as fit."""
        counts = (1, max(2, min(self.config.max_running, self.config.kv_tokens // 512)))
        return tuple((n * 512, self.config.cost.seconds(0, n, n * 512)) for n in counts)

    def submit(self, op: api.Op) -> None:
        if self._tier is None or op.open or op.parent is not None:
            self._later(partial(self.book.submit, op))
        else:
            self._later(partial(self._loader.arrive, op))

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        self._later(partial(self.book.feed, op, offset, part, last))

    def update(self, op: str, hints: api.Hints) -> None:
        self._later(partial(self._update, op, hints))

    def cancel(self, op: str) -> None:
        self._later(partial(self._cancel, op))

    def retain(self, context: str, retention: api.Retention) -> None:
        self._later(partial(self._retain, context, retention))

    def free(self, context: str) -> None:
        self._later(partial(self._free, context))

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._out.get()) is not None:
            yield events

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._out.put_nowait(None)

    def _later(self, verb: Callable[[], None]) -> None:
        # As across a process boundary: nothing changes between a step's plan and its end.
        self._verbs.append(verb)
        self._wake.set()

    async def _run(self) -> None:
        """One step after the other; sleeps while there is nothing to do."""
        while True:
            if not self.book.busy and not self._verbs:
                await self._rest()
            while self._verbs:
                self._verbs.popleft()()
            if self._tier is not None:
                self._loader.run(self._clock(), self.book.submit, lambda: self.book.busy)
            plan = self.book.plan()
            seconds = self._seconds(plan)
            if seconds:
                await asyncio.sleep(seconds)
                self.busy_s += seconds
            sampling = self.book.apply(plan)
            self._note_times(sampling)
            self.book.record(sampling, [[self._sampled(live)] for live in sampling])
            self._copy_out(sampling)
            if events := self.book.end_step(plan):
                self._out.put_nowait(events)
                if not seconds:
                    await asyncio.sleep(0)

    async def _rest(self) -> None:
        """Wait for a verb, or for the end of a copy."""
        self._wake.clear()
        ends = None if self._tier is None else self._loader.next_end
        wait_s = None if ends is None else max(0.0, ends - self._clock())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), wait_s)

    def _retain(self, context: str, retention: api.Retention) -> None:
        if self._tier is not None and retention is api.Retention.DROP:
            self._tier.drop(context)
        if self._tier is not None and retention is api.Retention.SWAP:
            self._tier.keep(context, self._clock())
            retention = api.Retention.EVICTABLE  # what was computed has been copied
        self.book.retain(context, retention)

    def _update(self, op: str, hints: api.Hints) -> None:
        self.book.update(op, hints)
        context = self.book.contexts.made_by(op)
        if self._tier is not None and context is not None and hints.expected_pause is not None:
            self._tier.expect(context.id, self._clock() + hints.expected_pause)

    def _cancel(self, op: str) -> None:
        if self._tier is not None and (waiting := self._loader.remove(op)) is not None:
            self.book.submit(waiting)
        self.book.cancel(op)

    def _free(self, context: str) -> None:
        self.book.free(context)
        if self._tier is not None:
            self._tier.free(context)

    def _copy_out(self, sampling: Sequence[Live]) -> None:
        """Copy what ended ops have computed to host memory."""
        if self._tier is None:
            return
        for live in sampling:
            context = live.context
            if context.ready:
                blocks = keys(context.salt, context.tokens, self.config.block_size)
                application = live.op.hints.application
                self._tier.store(context.id, application, blocks, self._clock())

    def _note_times(self, sampling: Sequence[Live]) -> None:
        """Note how long each answer has waited for its next token."""
        now = self._clock()
        for live in sampling:
            before = self._said.pop(live.op.id, None)
            if before is not None and live.sequence.output:
                self.between.append(now - before)
            self._said[live.op.id] = now
        while len(self._said) > MOST_TIMED:
            del self._said[next(iter(self._said))]

    def _seconds(self, plan: StepPlan) -> float:
        copied = self._copies.take_blocks() * self.config.block_size * self.config.cost.copy_s
        if not plan.chunks:
            return copied
        decoding = tokens = fill = attended = 0
        for chunk in plan.chunks:
            tokens += chunk.stop
            if chunk.samples and chunk.sequence.filled:
                decoding += 1
            else:
                size = chunk.stop - chunk.start
                fill += size
                attended += attended_by(size, chunk.start)
        self.computed += fill
        return copied + self.config.cost.seconds(fill, decoding, tokens, attended)

    def _sampled(self, live: Live) -> Sampled:
        """The next word, which depends on the last eight and on how many there are. The last word
        of an answer may be the call of a tool."""
        sequence, words, count = live.sequence, self.config.words, len(self.config.tools)
        tokens, asked = sequence.tokens, sequence.tokens[sequence.prompt - 1] - words - count
        is_last = sequence.output == live.params.max_tokens - 1
        if is_last and 0 <= asked < count and live.params.pause_on:
            return Sampled(words + asked, {}, ended=True)
        said = array("q", tokens[-8:]).tobytes()
        return Sampled(zlib.crc32(said, len(tokens)) % self.config.words, {})


def words_tokenizer(folder: Path, words: int, tools: Sequence[str] = ()) -> Path:
    """A tokenizer.json that splits at white space; any other word counts as w0."""
    known = [*(f"w{i}" for i in range(words)), *map(calling, tools), *map(asking, tools)]
    vocabulary = {word: id for id, word in enumerate(known)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
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
