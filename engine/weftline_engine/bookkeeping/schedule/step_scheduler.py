"""Decides what each step computes: plan() before the step, apply() after it. No tensors, no clock.

Sequences are served in the order of `urgency`, up to the most sequences and tokens of a step. A
running sequence gets one token, or as many prompt tokens as the step's token budget leaves. A
waiting sequence is admitted when there are blocks for its whole prompt. Throughput sequences make
room for latency sequences.

When a sequence needs a block and none is free, a block without a holder is evicted. If there is
none, the least urgent running sequence is preempted, and its tokens are computed again later. Idle
contexts are unpinned only when the sequence is the only one left. So the most urgent sequence
always advances, and there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from weftline_engine.bookkeeping.kv.contexts import Context, Contexts, Storage
from weftline_engine.bookkeeping.kv.tree import BlockPool, ContextTree, Node
from weftline_engine.bookkeeping.kv.windows import WindowConfig, Windows
from weftline_engine.bookkeeping.schedule.sequence import Phase, Sequence
from weftline_engine.bookkeeping.schedule.sequence_blocks import SequenceBlocks
from weftline_engine.bookkeeping.schedule.step_order import (
    PromptBudget,
    TokenBound,
    bulk,
    prompt_seconds,
    rank,
    urgency,
)
from weftline_engine.bookkeeping.schedule.step_seconds import ItlLimit, PromptSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The bounds of a step, and of the KV pool. Raises ValueError if one is too small.

    A prompt longer than `step_tokens` is computed in chunks, in steps in which other sequences
    decode. `order.PromptBudget` says when prompts get only `beside_tokens` of a step. With
    `ahead_beside`, open prompts may be computed in the same step as complete ones, otherwise only
    in steps without any. A step computes at most `early_tokens` tokens of open prompts, because a
    call that a reader waits for may come at any time. Without `predicts` the least recently used
    block is evicted first.

    With `window_blocks`, at most so many blocks hold the keys of layers that see `window` tokens.
    """

    blocks: int
    block_size: int = 16
    max_running: int = 64
    step_tokens: int = 512
    beside_tokens: int = 512
    ahead_beside: bool = True
    early_tokens: int = 32
    predicts: bool = True
    window: int = 0
    window_blocks: int = 0

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError("the KV pool is smaller than one block; give it more tokens")
        if self.step_tokens <= self.max_running:
            raise ValueError(
                f"step_tokens {self.step_tokens} must exceed max_running {self.max_running}"
            )
        if self.windows is not None:
            self.windows.check()

    @property
    def windows(self) -> WindowConfig | None:
        """The bounds of the blocks of sliding layers; None if these keep all keys."""
        if not self.window_blocks:
            return None
        size = self.block_size
        step = self.step_tokens // size + 2 * self.max_running
        return WindowConfig(-(-(self.window - 1) // size), self.window_blocks, step)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The work of a step for one sequence: compute its tokens from `start` up to `stop`.

    The keys and values of these tokens go into `blocks`. With `samples`, the next token is sampled.
    `drafts` are guesses of the tokens from `stop` on. They are computed after the others, and
    become tokens of the sequence only when they are accepted.
    """

    sequence: Sequence
    start: int
    stop: int
    blocks: tuple[int, ...]
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """How many tokens the chunk computes."""
        return self.stop - self.start + len(self.drafts)

    @property
    def current(self) -> bool:
        """Whether the sequence still needs what the chunk computes.

        A sequence needs nothing more if the sequence has ended since the plan, or if its last token
        turned out to be another.
        """
        return self.sequence.phase is Phase.RUNNING and self.stop <= self.sequence.computed


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step: copy blocks (source, target) all at once, then compute the chunks.

    `done` are fills that found all their tokens in the cache.
    """

    chunks: tuple[Chunk, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    done: tuple[Sequence, ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether every chunk is the last token of an output."""
        return all(one.samples and one.rows == 1 and one.sequence.filled for one in self.chunks)


class Scheduler:
    """Owns the block pool, the context tree, the contexts and the sequences."""

    def __init__(self, config: SchedulerConfig, storage: Storage) -> None:
        self.config = config
        self.pool = BlockPool(config.blocks)
        self.tree = ContextTree(self.pool, config.block_size, predicts=config.predicts)
        self.contexts = Contexts(self.tree, storage)
        self._storage = storage
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._windows: Windows | None = None
        if config.windows is not None:
            self._windows = Windows(config.windows, self.tree, self._in_windows, storage.release)
        self._blocks = SequenceBlocks(self.tree, self.running, self._windows)
        self._copies: list[tuple[int, int]] = []
        self._planned: set[int] = set()  # ids of the sequences with a chunk in this step
        self._full = False  # no more sequences are admitted in this step
        self._limit: ItlLimit | None = None
        self._unstamped: list[Sequence] = []  # sequences that came after the last plan

    def keep(self, limit: ItlLimit) -> None:
        """Let prompts keep this limit from now on, because the costs of steps are known."""
        self._limit = limit

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens, with all its output, must fit into the pool."""
        sequence.grain = self.config.block_size
        self._unstamped.append(sequence)
        sequence.move_to(Phase.WAITING)
        self.waiting.append(sequence)

    def plan(self, now: float = 0.0) -> StepPlan:
        """Decide the step at time `now`, in seconds. Afterwards the sequences are in the state
        after the step, except for the tokens that it samples."""
        self.tree.step += 1
        self.tree.now = now
        self._copies, self._planned, self._full = [], set(), False
        if self._windows is not None:
            self._windows.make_room()
        while self._unstamped:
            one = self._unstamped.pop()
            one.born = now - one.hints.waited
        everyone = [*self.running, *self.waiting]
        rank(everyone)
        chunks: list[Chunk] = []
        bound = TokenBound(now)
        config, places = self.config, self.config.max_running
        decoding = [one for one in self.running if one.left == 1]
        seconds = prompt_seconds(self._limit, decoding)
        left = config.step_tokens - min(len(decoding), places)
        prompts = PromptBudget(left, config.beside_tokens)
        early_left = config.early_tokens
        for sequence in sorted(everyone, key=urgency):
            ahead = sequence.open and bool(chunks) and not chunks[0].sequence.open
            if len(chunks) == places or (ahead and not config.ahead_beside):
                break  # all sequences that follow are open as well
            decodes = sequence.phase is Phase.RUNNING and sequence.left == 1
            most = 1 if decodes else prompts.allow(sequence)
            if sequence.open:
                most = min(most, early_left)
            if most < 1 or not bound.allows(sequence) or not self._ensure_running(sequence):
                continue
            chunk = self._chunk(sequence, most, None if decodes else seconds)
            if chunk is not None:
                chunks.append(chunk)
                self._planned.add(id(sequence))
                bound.add(sequence)
                prompts.spend(sequence, 0 if decodes else chunk.stop - chunk.start)
                early_left -= chunk.rows if sequence.open else 0
        done = [one for one in self.running if not one.generates and one.complete]
        finished = tuple(one for one in done if id(one) not in self._planned)
        return StepPlan(tuple(chunks), tuple(self._copies), finished)

    def draft(self, plan: StepPlan, drafts: Items[tuple[int, ...]]) -> StepPlan:
        """The plan with these drafts added to its chunks, as far as there are blocks for them that
        are free or have no holder."""
        chunks = []
        for chunk, some in zip(plan.chunks, drafts, strict=True):
            if some:
                room = self._reserve_drafts(chunk.sequence, len(some))
                blocks = tuple(chunk.sequence.blocks)
                chunk = replace(chunk, drafts=some[:room], blocks=blocks)
            chunks.append(chunk)
        return replace(plan, chunks=tuple(chunks))

    def accept(self, sequence: Sequence) -> None:
        """Count the next token as computed: it is a draft, whose keys the step has computed."""
        assert sequence.computed < len(sequence.tokens), "a draft is accepted before its token"
        sequence.computed += 1

    def verified(self, sequence: Sequence) -> None:
        """After the drafts of a step were verified: add the blocks that accepted drafts have filled
        to the tree, and free those that hold only rejected drafts."""
        if sequence.phase is Phase.RUNNING:
            self._blocks.enter(sequence, final=True)
            self._blocks.trim(sequence)

    def apply(self, plan: StepPlan) -> None:
        """After the step: add the blocks that it filled to the tree."""
        for chunk in plan.chunks:
            if chunk.sequence.phase is Phase.RUNNING:
                self._blocks.enter(chunk.sequence, final=True)

    def take_back(self, sequence: Sequence) -> None:
        """Count the last token of an output as not computed. A step has computed it if that step
        was launched before the host had read the token. Its keys and values may be those of
        another token, or not finite."""
        last, size = len(sequence.tokens) - 1, self.config.block_size
        if sequence.computed > last:
            self._storage.wipe([sequence.blocks[last // size]], last % size)
            sequence.computed = last
            self._blocks.trim(sequence)

    def rests(self, plan: StepPlan) -> bool:
        """Whether there is nothing to do after this step until the next verb."""
        if not all(one.open for one in (*self.running, *self.waiting)):
            return False
        still = not self.waiting and all(one.left == 0 for one in self.running)
        return still or not (plan.chunks or plan.done)

    def finish(self, sequence: Sequence, context: Context | None) -> None:
        """End a sequence without an error. What it computed stays pinned by `context`, if given."""
        if sequence.generates:
            self.take_back(sequence)
        self._blocks.enter(sequence, final=True)
        self._blocks.enter_tail(sequence)
        if context is not None:
            self.contexts.settle(context, sequence.tokens, sequence.held, sequence.computed)
        self._leave(sequence)

    def drop(self, sequence: Sequence, *, poisoned: bool = False) -> list[int]:
        """End a sequence that failed. Returns the blocks to wipe.

        A poisoned sequence may have written NaNs. Its own blocks are cut out of the tree, so that
        no other sequence finds them, and wiped, because 0 times NaN is NaN.
        """
        wipe = self._blocks.cut(sequence) if poisoned else []
        if poisoned and sequence.phase is Phase.WAITING:
            self._forget(sequence)
        if sequence.phase is Phase.HELD:
            sequence.move_to(Phase.DONE)
        else:
            self._leave(sequence)
        return wipe

    def _chunk(self, sequence: Sequence, most: int, seconds: PromptSeconds | None) -> Chunk | None:
        """The next tokens of a running sequence, at most `most`, and of a prompt those that have
        the `seconds`. None if it cannot continue now."""
        copy = self._blocks.reuse(sequence)
        if copy is not None:
            self._copies.append(copy)
        start = sequence.computed
        wanted = min(sequence.ready - start, most)
        stop = start + (wanted if seconds is None else seconds.allow(start, wanted))
        if start >= stop or not self._reserve(sequence, stop):
            return None
        if seconds is not None:
            seconds.spend(start, stop - start)
        sequence.computed = stop
        blocks = tuple(sequence.blocks)
        self._blocks.enter(sequence, final=False)
        samples = sequence.generates and stop == len(sequence.tokens) and not sequence.open
        return Chunk(sequence, start, stop, blocks, samples)

    def _ensure_running(self, sequence: Sequence) -> bool:
        """Whether the sequence is running. A waiting one is admitted if possible. After the first
        one without room no other is admitted in this step, so that none overtakes it."""
        if sequence.phase is Phase.WAITING and not self._full:
            self._full = not self._admit(sequence)
        return sequence.phase is Phase.RUNNING

    def _admit(self, sequence: Sequence) -> bool:
        """Admit a waiting sequence if there are blocks for all its tokens and one more."""
        size = self.config.block_size
        root = self.tree.root(sequence.op.salt)
        match = self.tree.match(root, sequence.tokens, self.tree.step)
        if self._windows is not None:
            match = self._windows.usable((), match)
        unheld = sum(node.holders == 0 for node in match.nodes)
        need = len(sequence.tokens) // size + 1 - len(match.nodes)
        need = min(need, self.pool.count - len(match.nodes))
        while self.tree.available - unheld < need or not self._windows_fit(sequence):
            victim = self._to_preempt_for(sequence)
            if victim is not None:
                self._preempt(victim)
            elif self.running or not self.contexts.unpin_oldest():
                return False
        self.waiting.remove(sequence)
        sequence.move_to(Phase.RUNNING)
        if not sequence.filled:
            sequence.cached = 0
        self.running.append(sequence)
        return True

    def _windows_fit(self, sequence: Sequence) -> bool:
        """Whether there are blocks for the windows of the running sequences and of this one."""
        if self._windows is None or not self.running:
            return True
        size = self.config.block_size
        return self._windows.fits(len(one.tokens) // size + 1 for one in (*self.running, sequence))

    def _in_windows(self) -> Iterator[Items[Node]]:
        """The nodes that the next tokens of the running sequences see through their windows."""
        windows = self.config.windows
        assert windows is not None, "only a model with windows releases any"
        for one in self.running:
            end = one.computed // self.config.block_size
            yield one.held[max(0, end - windows.behind - 1) :]

    def _to_preempt_for(self, sequence: Sequence) -> Sequence | None:
        """The running sequence to preempt for this waiting one. None if none should be.

        A sequence that waits for input is preempted, because its input may be the output of the
        waiting sequence. A throughput sequence is preempted for a more urgent latency sequence.
        """
        if sequence.open:
            return None
        candidates = [
            one
            for one in self.running
            if (one.open and one.left == 0)
            or (bulk(one) and not bulk(sequence) and urgency(one) > urgency(sequence))
        ]
        return max(candidates, key=urgency, default=None)

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence blocks for `tokens` tokens. False if there were too few, and the
        sequence was preempted."""
        while len(sequence.blocks) * self.config.block_size < tokens:
            block = self._block_for(sequence)
            if block is None:
                return False
            sequence.blocks.append(block)
        return True

    def _block_for(self, sequence: Sequence) -> int | None:
        """A block for the sequence. Less urgent sequences are preempted for it. None if all others
        are more urgent; then the sequence itself was preempted."""
        while True:
            block = self.tree.reserve()
            if block is not None:
                return block
            victim = max(self.running, key=urgency)
            if victim is not sequence:
                self._preempt(victim)
            elif len(self.running) > 1:
                self._preempt(sequence)
                return None
            elif not self.contexts.unpin_oldest():
                raise AssertionError(f"op {sequence.op.id} does not fit the pool even alone")

    def _reserve_drafts(self, sequence: Sequence, drafts: int) -> int:
        """Give the sequence blocks for these drafts, as far as there are any without a holder.
        Returns how many of the drafts have a block."""
        size = self.config.block_size
        while len(sequence.blocks) * size < sequence.computed + drafts:
            block = self.tree.reserve()
            if block is None:
                return len(sequence.blocks) * size - sequence.computed
            sequence.blocks.append(block)
        return drafts

    def _preempt(self, sequence: Sequence) -> None:
        assert id(sequence) not in self._planned, f"op {sequence.op.id} is in this step"
        self.running.remove(sequence)
        self._blocks.release(sequence)
        sequence.computed = 0
        sequence.move_to(Phase.WAITING)
        self.waiting.append(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """Cut the blocks of a sequence that was preempted before its fault was known out of the
        tree, unless others hold them."""
        match = self.tree.match(self.tree.root(sequence.op.salt), sequence.tokens, self.tree.step)
        free = next((node for node in match.nodes if not node.holders), None)
        if free is not None:
            self.tree.forget(free)

    def _leave(self, sequence: Sequence) -> None:
        queue = self.running if sequence.phase is Phase.RUNNING else self.waiting
        queue.remove(sequence)
        self._blocks.release(sequence)
        sequence.move_to(Phase.DONE)
