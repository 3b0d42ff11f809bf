"""Under any schedule, every token is computed over exactly its own prefix.

The model is replaced by its meaning: a KV row *is* the prefix that it was computed from. So after
each planned step the blocks of a chunk must spell the prefixes of its sequence.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine.api import Hints, Kind, Op
from weftline_engine.bookkeeping import Backend
from weftline_engine.bookkeeping.kv.contexts import Context
from weftline_engine.bookkeeping.schedule.scheduler import Scheduler, SchedulerConfig, StepPlan
from weftline_engine.bookkeeping.schedule.sequence import Phase, Sequence

SIZE = 4


class Meaning:
    """A KV pool whose rows hold the tokens up to and including their own."""

    def __init__(self, blocks: int) -> None:
        self.rows: list[list[tuple[int, ...]]] = [[()] * SIZE for _ in range(blocks)]

    def run(self, plan: StepPlan) -> None:
        copied = [list(self.rows[source]) for source, _ in plan.copies]
        for (_, target), rows in zip(plan.copies, copied, strict=True):
            self.rows[target] = rows
        for chunk in plan.chunks:
            for at in range(chunk.start, chunk.stop):
                prefix = tuple(chunk.sequence.tokens[: at + 1])
                self.rows[chunk.blocks[at // SIZE]][at % SIZE] = prefix
        for chunk in plan.chunks:
            for at in range(chunk.stop):
                seen = self.rows[chunk.blocks[at // SIZE]][at % SIZE]
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


class World:
    """A scheduler, the meaning of its pool, and generates that repeat one token."""

    def __init__(self, blocks: int, step_tokens: int, ahead_beside: bool = True) -> None:
        config = SchedulerConfig(
            blocks=blocks,
            block_size=SIZE,
            max_running=6,
            step_tokens=step_tokens,
            ahead_beside=ahead_beside,
            beside_tokens=3,
        )
        self.scheduler = Scheduler(config, Backend())
        self.meaning = Meaning(blocks)
        self.left: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
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


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(8, 20), st.sampled_from([7, 9, 64]))
def test_random_work_is_exact_and_ends(data: st.DataObject, blocks: int, step_tokens: int) -> None:
    """Ops with common prefixes and random hints arrive, fork, and are fed, cancelled and freed, on
    a pool that is too small. When all prompts are complete, all ops end.
    """
    world = World(blocks, step_tokens, data.draw(st.booleans()))

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
    for _ in range(3000):
        if world.idle:
            break
        world.step()
    assert world.idle
    for context in list(world.scheduler.contexts.named.values()):
        world.scheduler.contexts.free(context)
    assert world.scheduler.tree.available == blocks


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
