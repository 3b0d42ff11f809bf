"""Under any schedule, every token is computed over exactly its own prefix.

The model is replaced by its meaning: a KV row *is* the prefix that it was computed from. So after
each planned step the blocks of a chunk must spell the prefixes of its sequence.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine.api import Hints, Kind, Op, Retention
from weftline_engine.bookkeeping.kv.contexts import Context
from weftline_engine.bookkeeping.op_table import Backend
from weftline_engine.bookkeeping.schedule.sequence import Phase, Sequence
from weftline_engine.bookkeeping.schedule.step_scheduler import Scheduler, SchedulerConfig, StepPlan
from weftline_engine.bookkeeping.schedule.step_seconds import ItlLimit, StepSeconds

SIZE = 4


Row = tuple[int, ...]


class Meaning(Backend):
    """A KV pool whose rows hold the tokens up to and including their own. With a `window`, other
    layers have rows too, which a row sees through the window, and which are released."""

    def __init__(self, blocks: int, window: int = 0) -> None:
        self.window = window
        self.rows: list[list[Row]] = [[()] * SIZE for _ in range(blocks)]
        self.sliding: list[list[Row]] = [[()] * SIZE for _ in range(blocks)]

    @property
    def backed(self) -> int:
        """The blocks whose sliding layers have memory."""
        return sum(any(rows) for rows in self.sliding)

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.sliding[block] = [()] * SIZE

    def save(self, blocks: Iterable[int]) -> object:
        return [(list(self.rows[one]), list(self.sliding[one])) for one in blocks]

    def restore(self, saved: Any, pairs: Iterable[tuple[int, int]]) -> bool:
        for source, target in pairs:
            self.rows[target], self.sliding[target] = map(list, saved[source])
        return True

    def run(self, plan: StepPlan) -> None:
        for pool in (self.rows, self.sliding):
            copied = [list(pool[source]) for source, _ in plan.copies]
            for (_, target), rows in zip(plan.copies, copied, strict=True):
                pool[target] = rows
        for chunk in plan.chunks:
            for at in range(chunk.start, chunk.stop):
                prefix = tuple(chunk.sequence.tokens[: at + 1])
                self.rows[chunk.blocks[at // SIZE]][at % SIZE] = prefix
                self.sliding[chunk.blocks[at // SIZE]][at % SIZE] = prefix
        for chunk in plan.chunks:
            since = max(0, chunk.start + 1 - self.window)  # of what the first row sees
            for at in range(chunk.stop):
                pools = (self.rows, self.sliding) if self.window and at >= since else (self.rows,)
                for pool in pools:
                    seen = pool[chunk.blocks[at // SIZE]][at % SIZE]
                    assert seen == tuple(chunk.sequence.tokens[: at + 1])


def holders(sequences: Iterable[Sequence], contexts: Iterable[Context]) -> Counter[int]:
    """Count the holders of each tree node, by its id. The nodes' own counts must agree."""
    held = itertools.chain((s.held for s in sequences), (c.held for c in contexts))
    return Counter(id(node) for nodes in held for node in nodes)


def check_books(scheduler: Scheduler) -> None:
    """Every block is free, in the tree, or owned by a sequence. Every tree node counts
    its holders.
    """
    sequences = [*scheduler.running, *scheduler.waiting]
    expected = holders(sequences, scheduler.contexts.named.values())
    nodes = list(scheduler.tree.nodes())
    assert [node.holders for node in nodes] == [expected[id(node)] for node in nodes]
    assert scheduler.tree.evictable == sum(node.holders == 0 for node in nodes)
    own = sum(len(one.blocks) - len(one.held) for one in sequences)
    assert scheduler.pool.free + len(nodes) + own == scheduler.pool.count
    whole = own + sum(node.whole for node in nodes)
    assert scheduler.tree.whole.count == whole <= scheduler.tree.whole.most
    for one in sequences:
        assert one.blocks[: len(one.held)] == [node.block for node in one.held]


class NotingScheduler(Scheduler):
    """It notes which ops were preempted, so that they compute some rows again."""

    def __init__(self, config: SchedulerConfig, backend: Backend) -> None:
        super().__init__(config, backend)
        self.preempted: set[str] = set()

    def _preempt(self, sequence: Sequence) -> None:
        self.preempted.add(sequence.op.id)
        super()._preempt(sequence)


class World:
    """A scheduler, the meaning of its pool, and generates that repeat one token."""

    def __init__(
        self,
        blocks: int,
        step_tokens: int,
        ahead_beside: bool = True,
        *,
        window: int = 0,
        whole: int = 0,
        max_running: int = 6,
    ) -> None:
        config = SchedulerConfig(
            blocks=blocks,
            block_size=SIZE,
            max_running=max_running,
            window=window,
            window_blocks=whole,
            step_tokens=step_tokens,
            ahead_beside=ahead_beside,
            beside_tokens=3,
        )
        self.meaning = Meaning(blocks, window)
        self.scheduler = NotingScheduler(config, self.meaning)
        self.left: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.rows = Counter[str]()  # of prompts, until they are computed once
        self.count = 0

    def add(
        self,
        prompt: list[int],
        output: list[int],
        salt: str,
        parent: str | None,
        hints: Hints,
        *,
        open: bool = False,
    ) -> str:
        name = f"op{self.count}"
        kind = Kind.GENERATE if output else Kind.FILL
        op = Op(id=name, kind=kind, context=name, salt=salt, hints=hints)
        tokens = list(prompt)
        if parent is not None:
            tokens = [*self.scheduler.contexts.named[parent].tokens, *prompt]
        sequence = Sequence(op, self.count, tokens=tokens, prompt=len(tokens), open=open)
        self.count += 1
        self.left[name] = list(output)
        self.scheduler.add(sequence)
        return name

    def step(self) -> bool:
        """Do one step. Return whether there is more to do."""
        plan = self.scheduler.plan()
        for chunk in plan.chunks:
            if not (one := chunk.sequence).filled:
                self.rows[one.op.id] += min(chunk.stop, one.prompt) - chunk.start
        self.meaning.run(plan)
        self.scheduler.apply(plan)
        for chunk in plan.chunks:
            if chunk.samples:
                self._sampled(chunk.sequence)
        for one in list(self.scheduler.running):
            if not one.generates and not one.open and one.computed == len(one.tokens):
                self._finish(one)
        check_books(self.scheduler)
        return not self.scheduler.rests(plan)

    def feed(self, sequence: Sequence, more: list[int], *, last: bool) -> None:
        sequence.tokens += more
        sequence.prompt += len(more)
        sequence.open = not last

    def _sampled(self, sequence: Sequence) -> None:
        sequence.filled = True
        sequence.tokens.append(self.left[sequence.op.id].pop(0))
        if not self.left[sequence.op.id]:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        name = sequence.op.id
        context = self.scheduler.contexts.add(sequence.op)
        self.cached[name] = sequence.cached
        computed = sequence.prompt - sequence.cached
        is_exact = computed == self.rows[name]
        assert is_exact or (computed < self.rows[name] and name in self.scheduler.preempted)
        self.scheduler.finish(sequence, context)
        assert sequence.phase is Phase.DONE

    @property
    def idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting


letters = st.lists(st.integers(1, 2), max_size=14)
some_hints = st.builds(
    Hints,
    application=st.sampled_from(["", "a", "b"]),
    depth=st.integers(0, 3),
    work_left=st.sampled_from([0, 50, 5000]),
    criterion=st.sampled_from(["latency", "throughput"]),
    token_bound=st.sampled_from([None, None, 0, 20]),
)


ACTIONS = ("add", "add", "fork", "step", "step", "feed", "update", "cancel", "free")


def act(world: World, data: st.DataObject) -> None:
    """Do one thing that a server may do, or a step."""
    contexts = sorted(world.scheduler.contexts.named)
    queued = [*world.scheduler.running, *world.scheduler.waiting]
    match data.draw(st.sampled_from(ACTIONS)):
        case "add":
            salt = data.draw(st.sampled_from(["", "", "", "tenant"]))
            world.add(
                [1, *data.draw(letters)],
                data.draw(letters),
                salt,
                None,
                data.draw(some_hints),
                open=data.draw(st.booleans()),
            )
        case "fork" if contexts:
            parent = data.draw(st.sampled_from(contexts))
            found = world.scheduler.contexts.named[parent]
            if len(found.tokens) <= 4 * SIZE:
                world.add(
                    [1, *data.draw(letters)[:8]],
                    data.draw(letters)[:6],
                    found.salt,
                    parent,
                    data.draw(some_hints),
                )
        case "feed" if [one for one in queued if one.open and len(one.tokens) < 15]:
            hungry = [one for one in queued if one.open and len(one.tokens) < 15]
            one = data.draw(st.sampled_from(hungry))
            world.feed(one, data.draw(letters)[:4], last=data.draw(st.booleans()))
        case "update" if queued:
            data.draw(st.sampled_from(queued)).hints = data.draw(some_hints)
        case "cancel" if queued:
            world.scheduler.drop(data.draw(st.sampled_from(queued)))
        case "free" if contexts:
            named = world.scheduler.contexts.named
            world.scheduler.contexts.free(named[data.draw(st.sampled_from(contexts))])
        case _:
            world.step()


def finish(world: World, blocks: int) -> None:
    """All ops end. Then no context holds any of the blocks."""
    for _ in range(3000):
        if world.idle:
            break
        world.step()
    assert world.idle
    for context in list(world.scheduler.contexts.named.values()):
        world.scheduler.contexts.free(context)
    assert world.scheduler.tree.available == blocks


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(8, 20), st.sampled_from([7, 9, 64]))
def test_random_work_is_exact_and_ends(data: st.DataObject, blocks: int, step_tokens: int) -> None:
    """Ops with common prefixes and random hints arrive, fork, and are fed, cancelled and freed, on
    a pool that is too small. When all prompts are complete, all ops end. Prompts may have a limit
    beside answers, which is so strict that one token fits.
    """
    world = World(blocks, step_tokens, data.draw(st.booleans()))
    if data.draw(st.booleans()):
        world.scheduler.keep(ItlLimit(StepSeconds(step_s=0.0, fill_s=1.0), 1.0, least=1))

    for _ in range(data.draw(st.integers(1, 25))):
        act(world, data)
        check_books(world.scheduler)
    for _ in range(3000):
        if not world.step():
            break
    queued = [*world.scheduler.running, *world.scheduler.waiting]
    assert all(one.open for one in queued)
    for one in queued:
        world.feed(one, [2], last=True)
    finish(world, blocks)


@settings(max_examples=15, deadline=None)
@given(st.lists(some_hints, min_size=32, max_size=32))
def test_thirty_two_requests_finish_on_eight_blocks(hints: list[Hints]) -> None:
    """32 requests of 5 blocks each share nothing. Contexts stay pinned until the end."""
    world = World(8, 7)
    for i in range(32):
        world.add([i + 1] * 12, [i + 1] * 8, "", None, hints[i])
    steps = 0
    while not world.idle:
        world.step()
        steps += 1
    assert steps < 32 * 12
    assert sorted(world.cached) == sorted(f"op{i}" for i in range(32))


long_letters = st.lists(st.integers(1, 2), max_size=90)


def act_long(world: World, data: st.DataObject) -> None:
    """Do one thing with long prompts, of which several begin alike, or a step."""
    contexts = world.scheduler.contexts
    names = sorted(contexts.named)
    match data.draw(st.sampled_from(("add", "fork", "step", "step", "step", "retain", "free"))):
        case "add":
            begin = [1, 2, 1] * data.draw(st.integers(0, 40))
            more, output = data.draw(long_letters)[:20], data.draw(letters)
            world.add([1, *begin, *more], output, "", None, data.draw(some_hints))
        case "fork" if names:
            parent = data.draw(st.sampled_from(names))
            if len(contexts.named[parent].tokens) < 100:
                world.add([2, *data.draw(letters)], data.draw(letters), "", parent, Hints())
        case "retain" if names:
            found = contexts.named[data.draw(st.sampled_from(names))]
            contexts.retain(found, data.draw(st.sampled_from(Retention)))
        case "free" if names:
            contexts.free(contexts.named[data.draw(st.sampled_from(names))])
        case _:
            world.step()


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([5, 8, 13]), st.integers(25, 40), st.sampled_from([7, 16]))
def test_windows_are_released_and_branches_stay_exact(
    data: st.DataObject, window: int, whole: int, step_tokens: int
) -> None:
    """A row never sees a released row through its window, wherever its sequence has branched off a
    path, and never more blocks have memory for the sliding layers than may. All ops end."""
    world = World(60, step_tokens, window=window, whole=whole, max_running=3)
    for _ in range(data.draw(st.integers(1, 40))):
        act_long(world, data)
        check_books(world.scheduler)
    finish(world, 60)


def test_a_long_prompt_keeps_its_window_and_is_read_again() -> None:
    """A path of 51 blocks runs with 30 whole ones. A second prompt goes on at its end without
    computing. One that branches off in the middle computes from the last place that is whole, with
    the same rows. The blocks that it computed again are whole then."""
    world = World(60, 16, window=8, whole=30, max_running=3)
    prompt = [1, 2] * 100
    world.add(prompt, [1, 1], "", None, Hints())
    while not world.idle:
        world.step()
    first = world.scheduler.contexts.named["op0"].held
    assert [node.whole for node in first].count(False) > 20
    assert all(node.whole for node in first[-3:]) and world.meaning.backed <= 30
    world.add([2, 2], [1], "", "op0", Hints())
    while not world.idle:
        world.step()
    assert world.cached["op1"] == 201
    world.scheduler.contexts.free(world.scheduler.contexts.named["op0"])
    begin = [node.whole for node in first].index(False)
    assert 0 < begin < 20
    world.add([*prompt[:90], 2, 2], [1], "", None, Hints())
    while not world.idle:
        world.step()
    assert world.cached["op2"] in ((begin - 1) * SIZE, begin * SIZE)  # one more may be released
    second = world.scheduler.contexts.named["op2"].held
    assert second[:22] == first[:22] and all(node.whole for node in second[-4:])


@pytest.mark.parametrize("window", [5, 8, 13])
def test_a_path_that_is_computed_again_gives_its_windows_back(window: int) -> None:
    """A second prompt is the first one but for its end. It computes blocks again whose nodes are
    there, so no node is added; but each takes a whole block, of which there are 25."""
    world = World(60, 16, window=window, whole=25, max_running=3)
    for length in (112, 1, 1, 1, 1, 103):
        world.add(([1] + [1, 2, 1] * 37)[:length], [], "", None, Hints())
    steps = 0
    while not world.idle:
        world.step()
        check_books(world.scheduler)
        steps += 1
    assert steps < 30
