"""Decides what each step computes: plan() before it, apply() after it, no tensors, no clock.

Sequences are served in the order of `urgency`, as many as a step has places and tokens for. A
running one takes one token, or as much of its prompt as the step's token budget leaves; a waiting
one is let in when its whole prompt has room, for which throughput makes way to latency. When a
sequence needs a block and none is free, the cache nobody holds goes first, then the least urgent
running sequence is preempted (it recomputes later), and only when the sequence is alone are idle
contexts unpinned. So the most urgent sequence always advances, and nothing can deadlock.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from weftline_engine.bookkeeping.kv.tree import BlockPool, ContextTree, Node
from weftline_engine.bookkeeping.schedule.order import PromptBudget, TokenBound, bulk, rank, urgency
from weftline_engine.bookkeeping.schedule.sequence import Context, Phase, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Bounds of a step. A longer prompt is computed in chunks, so that others decode meanwhile, of
    at most `beside_tokens` in all where `order.PromptBudget` says so. Raises ValueError for a
    pool or a step that is too small."""

    blocks: int
    block_size: int = 16
    max_running: int = 64
    step_tokens: int = 512
    beside_tokens: int = 512
    ahead_beside: bool = True  # open prompts beside complete ones, or only where there are none
    predicts: bool = True  # what leaves the cache goes by its next use, else by its last one

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError("the KV pool is smaller than one block; give it more tokens")
        if self.step_tokens <= self.max_running:
            raise ValueError(
                f"step_tokens {self.step_tokens} must exceed max_running {self.max_running}"
            )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute tokens [start, stop) of a sequence in `blocks`, and perhaps sample after the last."""

    sequence: Sequence
    start: int
    stop: int
    blocks: tuple[int, ...]
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step: copy blocks (source, target) all at once, then compute the chunks.

    `done` are fills that found all their tokens in the cache; `dropped` contexts lost their KV.
    """

    chunks: tuple[Chunk, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    done: tuple[Sequence, ...] = ()
    dropped: tuple[Context, ...] = ()


class Scheduler:
    """Owns the block pool, the context tree, and the sequences and contexts that hold blocks."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.blocks)
        self.tree = ContextTree(self.pool, config.block_size, predicts=config.predicts)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.contexts: dict[str, Context] = {}
        self.step = 0
        self._clock = itertools.count(1)
        self._copies: list[tuple[int, int]] = []
        self._dropped: list[Context] = []
        self._planned: set[int] = set()  # ids of the sequences that have their chunk of this step
        self._full = False  # nobody is let in any more in this step

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens can run when it is alone."""
        return -(-tokens // self.config.block_size) <= self.pool.count

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens, with all its output, must fit the pool."""
        sequence.born, sequence.grain = self.step, self.config.block_size
        self.waiting.append(sequence)

    def plan(self, now: float = 0.0) -> StepPlan:
        """Decide the step at second `now`. The sequences are then as if it had run, but for new
        tokens."""
        self.step += 1
        self.tree.now = now
        self._copies, self._dropped, self._planned, self._full = [], [], set(), False
        everyone = [*self.running, *self.waiting]
        rank(everyone)
        chunks: list[Chunk] = []
        bound = TokenBound()
        config, places = self.config, self.config.max_running
        decoding = sum(one.left == 1 for one in self.running)
        prompts = PromptBudget(config.step_tokens - min(decoding, places), config.beside_tokens)
        for sequence in sorted(everyone, key=urgency):
            ahead = sequence.open and bool(chunks) and not chunks[0].sequence.open
            if len(chunks) == places or (ahead and not config.ahead_beside):
                break  # all that follow are open as well
            decodes = sequence.phase is Phase.RUNNING and sequence.left == 1
            most = 1 if decodes else prompts.allow(sequence)
            if most < 1 or not bound.allows(sequence) or not self._is_in(sequence):
                continue
            chunk = self._chunk(sequence, most)
            if chunk is not None:
                chunks.append(chunk)
                self._planned.add(id(sequence))
                bound.add(sequence)
                prompts.spend(sequence, 0 if decodes else chunk.stop - chunk.start)
        done = [one for one in self.running if not one.generates and one.complete]
        finished = tuple(one for one in done if id(one) not in self._planned)
        return StepPlan(tuple(chunks), tuple(self._copies), finished, tuple(self._dropped))

    def apply(self, plan: StepPlan) -> None:
        """After the step: enter the blocks that it filled."""
        for chunk in plan.chunks:
            if chunk.sequence.phase is Phase.RUNNING:
                self._enter(chunk.sequence, final=True)

    def rests(self, plan: StepPlan) -> bool:
        """Whether there is nothing to do after this step until something comes from outside."""
        if not all(one.open for one in (*self.running, *self.waiting)):
            return False
        still = not self.waiting and all(one.left == 0 for one in self.running)
        return still or not (plan.chunks or plan.done)

    def finish(self, sequence: Sequence, context: Context | None) -> None:
        """The sequence ends well; what it computed stays pinned under `context`, if any."""
        self._enter(sequence, final=True)
        self._enter_tail(sequence)
        if context is not None:
            context.tokens = tuple(sequence.tokens)
            context.held = list(sequence.held)
            for node in context.held:
                self.tree.hold(node)
            context.ready = True
            context.computed = sequence.computed
            context.used = next(self._clock)
        self._leave(sequence)

    def drop(self, sequence: Sequence, *, poisoned: bool = False) -> list[int]:
        """The sequence ends badly. Returns the blocks to wipe: what a poisoned one computed itself
        is cut out of the tree, for nobody must find it, nor multiply its NaNs by zero."""
        wipe: list[int] = []
        if poisoned:
            own = [i for i, node in enumerate(sequence.held) if node.holders == 1]
            first = min(own, default=len(sequence.held))
            wipe = sequence.blocks[first:]
            if own:
                self.tree.forget(sequence.held[first])
        if sequence.phase is not Phase.HELD:
            self._leave(sequence)
        else:
            sequence.move_to(Phase.DONE)
        return wipe

    def free(self, context: Context) -> None:
        """Unpin a context and forget its name."""
        self.unpin(context)
        self.tree.unwant(context.id)
        self.contexts.pop(context.id, None)

    def unpin(self, context: Context) -> None:
        self.tree.release(context.held)
        context.held = []

    def expect(self, context: Context, pause_s: float, tokens: int | None) -> None:
        """A context will be read in `pause_s` seconds, its first `tokens` only: the others are
        unpinned."""
        size = self.config.block_size
        path: list[Node] = context.held
        if not path:
            root = self.tree.root(context.salt)
            path = list(self.tree.match(root, context.tokens, self.step + 1).nodes)
        if tokens is not None and tokens < context.computed:
            path = path[: -(-tokens // size)]
            self.tree.release(context.held[len(path) :])
            context.held = context.held[: len(path)]
        if path:
            self.tree.want(context.id, path[-1], self.tree.now + pause_s)

    def restore(self, context: Context, *, missing: bool) -> list[tuple[int, int]]:
        """Pin a context's nodes again, and make the `missing` ones, as far as there is room without
        taking any from a holder.

        Returns which of its blocks, counted from 0, must be copied into which block of the pool.
        """
        size, copies = self.config.block_size, []
        node = self.tree.root(context.salt)
        for index in range(-(-context.computed // size)):
            tokens = context.tokens[index * size : min((index + 1) * size, context.computed)]
            found = self.tree.find(node, tokens)
            if found is not None:
                self.tree.hold(found)
            else:
                block = self.tree.take() if missing else None
                if block is None:
                    break
                found = self.tree.add(node, tokens, block, self.step)
                assert found is not None
                copies.append((index, block))
            context.held.append(found)
            node = found
        return copies

    def touch(self, context: Context) -> None:
        context.used = next(self._clock)

    def _chunk(self, sequence: Sequence, most: int) -> Chunk | None:
        """The next tokens of a running sequence, at most so many; None when it cannot go on now."""
        self._reuse(sequence)
        stop = min(sequence.ready, sequence.computed + most)
        start = sequence.computed
        if start >= stop or not self._reserve(sequence, stop):
            return None
        sequence.computed = stop
        blocks = tuple(sequence.blocks)
        self._enter(sequence, final=False)
        samples = sequence.generates and stop == len(sequence.tokens) and not sequence.open
        return Chunk(sequence, start, stop, blocks, samples)

    def _reuse(self, sequence: Sequence) -> None:
        """Go on over what the tree holds of the next tokens, computed earlier or in this step.

        A block of its own that is not full (the copied end of a context) gives way to a full one.
        """
        size, before = self.config.block_size, sequence.computed
        begin = len(sequence.held) * size
        if before - begin >= size:
            return  # a block of its own duplicates a node until the step is applied
        # The last token of a prompt is computed in any case: its logits are wanted.
        last = len(sequence.tokens) - (1 if sequence.generates else 0)
        if last <= before or (sequence.filled and sequence.left == 1):
            return
        match = self.tree.match(self._node(sequence), sequence.tokens[begin:last], self.step)
        if before > begin and not match.nodes:
            return
        for node in match.nodes:
            self.tree.use(node)
        for block in sequence.blocks[len(sequence.held) :]:  # one, or none
            self.pool.give(block)
        sequence.blocks[len(sequence.held) :] = [node.block for node in match.nodes]
        sequence.held.extend(match.nodes)
        sequence.computed = begin + len(match.nodes) * size
        copy = self.tree.take_beside(match.partial) if match.partial else None
        if match.partial is not None and copy is not None:  # else it computes these few itself
            self._copies.append((match.partial.block, copy))
            sequence.blocks.append(copy)
            sequence.computed += match.extra
        if not sequence.filled:
            sequence.cached += min(sequence.computed, sequence.prompt) - before

    def _is_in(self, sequence: Sequence) -> bool:
        """Whether the sequence is running, by being let in now if need be. Where one finds no room,
        nobody else is let in before it."""
        if sequence.phase is Phase.WAITING and not self._full:
            self._full = not self._admit(sequence)
        return sequence.phase is Phase.RUNNING

    def _admit(self, sequence: Sequence) -> bool:
        """Let a waiting sequence in if there is room for all its tokens and one more."""
        size = self.config.block_size
        match = self.tree.match(self.tree.root(sequence.op.salt), sequence.tokens, self.step)
        unheld = sum(node.holders == 0 for node in match.nodes)
        need = len(sequence.tokens) // size + 1 - len(match.nodes)
        need = min(need, self.pool.count - len(match.nodes))
        while self.tree.available - unheld < need:
            victim = self._makes_way(sequence)
            if victim is not None:
                self._preempt(victim)
            elif self.running or not self._drop_idle():
                return False
        self.waiting.remove(sequence)
        sequence.move_to(Phase.RUNNING)
        if not sequence.filled:
            sequence.cached = 0
        self.running.append(sequence)
        return True

    def _makes_way(self, sequence: Sequence) -> Sequence | None:
        """The running sequence that gives its room to this waiting one, None if none should.

        One that waits for input does: it may be the very output of the one that waits here. One
        for throughput does where this one is for latency, and comes before it.
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
        """Give the sequence blocks for so many tokens; False if it was preempted for want."""
        while len(sequence.blocks) * self.config.block_size < tokens:
            block = self._take(sequence)
            if block is None:
                return False
            sequence.blocks.append(block)
        return True

    def _take(self, sequence: Sequence) -> int | None:
        """A block, at the cost of less urgent sequences. None: there is none that this one may
        have, and it has been preempted itself."""
        while True:
            block = self.tree.take()
            if block is not None:
                return block
            victim = max(self.running, key=urgency)
            if victim is not sequence:
                self._preempt(victim)
            elif len(self.running) > 1:
                self._preempt(sequence)
                return None
            elif not self._drop_idle():
                raise AssertionError(f"op {sequence.op.id} does not fit the pool even alone")

    def _preempt(self, sequence: Sequence) -> None:
        assert id(sequence) not in self._planned, f"op {sequence.op.id} is in this step"
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = 0
        sequence.move_to(Phase.WAITING)
        self.waiting.append(sequence)

    def _drop_idle(self) -> bool:
        """Unpin the idle context that was used longest ago; False when none is pinned."""
        pinned = [one for one in self.contexts.values() if one.held]
        if not pinned:
            return False
        context = min(pinned, key=lambda one: one.used)
        self.unpin(context)
        self._dropped.append(context)
        return True

    def _enter(self, sequence: Sequence, *, final: bool) -> None:
        """Enter full blocks into the tree. Where another has entered the same tokens first, its
        block replaces ours, but only after the step (`final`), which may still write to ours."""
        size = self.config.block_size
        for index in range(len(sequence.held), sequence.computed // size):
            tokens = tuple(sequence.tokens[index * size : (index + 1) * size])
            parent = self._node(sequence)
            node = self.tree.add(parent, tokens, sequence.blocks[index], self.step)
            if node is None:
                if not final:
                    return
                node = self.tree.find(parent, tokens)
                assert node is not None
                self._replace(sequence, index, node)
            sequence.held.append(node)

    def _enter_tail(self, sequence: Sequence) -> None:
        """Enter the partly filled last block, which ends a context."""
        done = len(sequence.held) * self.config.block_size
        tokens = tuple(sequence.tokens[done : sequence.computed])
        if not tokens:
            return
        index, parent = len(sequence.held), self._node(sequence)
        node = self.tree.find(parent, tokens)
        if node is None:
            node = self.tree.add(parent, tokens, sequence.blocks[index], self.step)
            assert node is not None
        else:
            self._replace(sequence, index, node)
        sequence.held.append(node)

    def _replace(self, sequence: Sequence, index: int, node: Node) -> None:
        self.tree.hold(node)
        self.pool.give(sequence.blocks[index])
        sequence.blocks[index] = node.block

    def _node(self, sequence: Sequence) -> Node:
        return sequence.held[-1] if sequence.held else self.tree.root(sequence.op.salt)

    def _leave(self, sequence: Sequence) -> None:
        queue = self.running if sequence.phase is Phase.RUNNING else self.waiting
        queue.remove(sequence)
        self._release(sequence)
        sequence.move_to(Phase.DONE)

    def _release(self, sequence: Sequence) -> None:
        for block in sequence.blocks[len(sequence.held) :]:
            self.pool.give(block)
        self.tree.release(sequence.held)
        sequence.blocks, sequence.held = [], []
