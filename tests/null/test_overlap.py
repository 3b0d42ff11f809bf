"""Steps that are planned and launched before the host has read the tokens of the last step, on a
device that knows for each place of its cache which tokens were computed there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine import api
from weftline_engine.bookkeeping.book import Book
from weftline_engine.bookkeeping.op_checks import EngineLimits
from weftline_engine.bookkeeping.op_table import Backend, Live
from weftline_engine.bookkeeping.output import Sampled
from weftline_engine.bookkeeping.schedule.sequence import UNREAD
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig, StepPlan
from weftline_engine.pretend.simulation import Words

SIZE = 4
EOS = 99
Language = Callable[[Sequence[int]], int]
Place = tuple[int, int]  # block, and token within it


class Places(Backend):
    """What was computed at each place: the tokens up to there. None after it was erased."""

    def __init__(self) -> None:
        self.kv: dict[Place, tuple[int, ...] | None] = {}
        self.erased = 0

    def wipe(self, blocks: Sequence[int], place: int | None = None) -> None:
        for block in blocks:
            for at in range(SIZE) if place is None else [place]:
                self.kv[block, at] = None
        self.erased += place is not None

    def save(self, blocks: Sequence[int]) -> object:
        return [[self.kv.get((block, at)) for at in range(SIZE)] for block in blocks]

    def restore(self, saved: Any, pairs: Sequence[tuple[int, int]]) -> bool:
        for source, target in pairs:
            self.kv |= {(target, at): saved[source][at] for at in range(SIZE)}
        return True


@dataclass
class Pilot:
    """A book and its device. With `overlaps` a step's tokens are read after the next launch. The
    device draws another token first where `slips` says so."""

    language: Language
    blocks: int = 32
    overlaps: bool = True
    slips: Callable[[], bool] = lambda: False
    checks: bool = True
    steps: list[list[tuple[int, int]]] = field(default_factory=list)  # the chunks of each
    events: list[api.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = SchedulerConfig(blocks=self.blocks, block_size=SIZE, max_running=4, step_tokens=16)
        limits = EngineLimits(context=self.blocks * SIZE, vocabulary=100, eos=(EOS,))
        self.cache = Places()
        self.book = Book(config, limits, Words(), self.cache, clock=lambda: 0.0)
        self.flight: tuple[list[Live], list[Sampled]] | None = None
        self.on_device: dict[str, int] = {}  # the token that each op has drawn

    @property
    def busy(self) -> bool:
        return self.book.busy or self.flight is not None

    def run(self, *ops: api.Op) -> dict[str, list[int]]:
        for op in ops:
            self.book.submit(op)
        self.rest()
        return self.said

    def rest(self, between: Callable[[], None] = lambda: None) -> None:
        """Step until there is nothing to do. `between` is called after each step."""
        for _ in range(900):
            if not self.busy:
                return
            self.step()
            between()
        raise AssertionError("the book does not come to rest")

    @property
    def said(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for event in self.events:
            if isinstance(event, api.Part):
                found.setdefault(event.op, []).extend(event.tokens)
        return found

    def step(self) -> None:
        plan = self.book.plan(self.flight[0] if self.flight else ())
        self.launch(plan)
        self.land()
        sampling = self.book.apply(plan)
        sampled = []
        for live in sampling:
            token, slips = self.language(live.sequence.tokens), self.overlaps and self.slips()
            self.on_device[live.op.id] = token + 1 if slips else token
            sampled.append(Sampled(token, {}, redrawn=slips))
        if plan.chunks:
            self.flight = sampling, sampled
        if not self.overlaps:
            self.land()
        self.events += self.book.end_step(plan)
        if self.checks:
            self.validate()

    def land(self) -> None:
        if self.flight is not None:
            self.book.record(self.flight[0], [[one] for one in self.flight[1]])
        self.flight = None

    def launch(self, plan: StepPlan) -> None:
        """Compute a step: each row reads the very tokens that it stands behind."""
        kv = self.cache.kv
        kv |= {
            (target, at): kv.get((source, at))
            for source, target in plan.copies
            for at in range(SIZE)
        }
        self.steps.append([(chunk.start, chunk.stop) for chunk in plan.chunks])
        rows = []
        for chunk in plan.chunks:
            drawn = self.on_device.get(chunk.sequence.op.id, UNREAD)
            tokens = [drawn if one == UNREAD else one for one in chunk.sequence.tokens]
            assert UNREAD not in tokens
            rows.append((chunk, tuple(tokens)))
        for chunk, tokens in rows:
            for at in range(chunk.start, chunk.stop):
                kv[chunk.blocks[at // SIZE], at % SIZE] = tokens[: at + 1]
        for chunk, tokens in rows:
            for at in range(chunk.stop):
                assert kv[chunk.blocks[at // SIZE], at % SIZE] == tokens[: at + 1]

    def validate(self) -> None:
        """Every block is free, in the tree or a sequence's own, and the tree holds what it says."""
        scheduler = self.book.scheduler
        sequences = [*scheduler.running, *scheduler.waiting]
        own = sum(len(one.blocks) - len(one.held) for one in sequences)
        nodes = list(scheduler.tree.nodes())
        assert scheduler.pool.free + len(nodes) + own == scheduler.pool.count
        for one in sequences:
            assert UNREAD not in one.tokens and one.computed <= len(one.tokens)
            assert len(one.blocks) == max(len(one.held), -(-one.computed // SIZE))
        for node in nodes:
            path, above = list(node.tokens), node.parent
            while above is not None:
                path, above = [*above.tokens, *path], above.parent
            last = self.cache.kv[node.block, len(node.tokens) - 1]
            assert last == tuple(path)

    def ends(self) -> dict[str, tuple[Any, ...]]:
        """How each op ended, and with how many tokens."""
        return {
            one.op: (one.reason, one.usage.prompt_tokens, one.usage.output_tokens)
            for one in self.events
            if isinstance(one, api.Finished)
        }


def generate(name: str, tokens: Sequence[int], **options: Any) -> api.Op:
    sampling = {"max_tokens": 12, "temperature": 0.0, **options.pop("sampling", {})}
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tuple(tokens),
        sampling=api.SamplingParams(**sampling),
        **options,
    )


def count(tokens: Sequence[int]) -> int:
    """Counts up, and ends behind 9."""
    return EOS if tokens[-1] == 9 else tokens[-1] + 1


def test_a_step_is_planned_with_a_token_that_the_host_has_not_read() -> None:
    """Three tokens take the three steps that they take without overlap. The last one is known to be
    the last before it is read, so nothing is computed for it."""
    pilot, plain = Pilot(count), Pilot(count, overlaps=False)
    op = generate("a", [1, 2, 3], sampling={"max_tokens": 3})
    assert pilot.run(op) == plain.run(op) == {"a": [4, 5, 6]}
    assert plain.steps == [[(0, 3)], [(3, 4)], [(4, 5)]]
    assert pilot.steps == [*plain.steps, []]  # the fourth call only reads
    assert pilot.cache.erased == 0


def test_an_end_that_is_found_late_leaves_what_it_leaves_without_overlap() -> None:
    """The end token, a stop string and a tool call end an output while the step behind it runs. Its
    row is erased, also where it has just begun a block, and the context can be continued."""
    for sampling, said in (
        ({}, [5, 6, 7, 8, 9, EOS]),
        ({"stop": ("w8 ",)}, [5, 6, 7, 8]),
        ({"pause_on": ("w8",), "stop": ("w8",)}, [5, 6, 7, 8]),
    ):
        pilot, plain = Pilot(count), Pilot(count, overlaps=False)
        op = generate("a", [1, 2, 3, 4], sampling=sampling)
        assert pilot.run(op) == plain.run(op) == {"a": said}
        assert pilot.cache.erased == 1
        assert pilot.ends() == plain.ends()
        free = pilot.book.scheduler.pool.free
        assert free == plain.book.scheduler.pool.free
        more = generate("b", [1], parent="a", sampling={"max_tokens": 5})
        assert pilot.run(more)["b"] == plain.run(more)["b"] == [2, 3, 4, 5, 6]
        computed = pilot.book.contexts.named["a"].computed
        assert computed == plain.book.contexts.named["a"].computed == 3 + len(said)


def test_a_token_that_is_drawn_again_is_computed_again() -> None:
    """The device's second draw, of token 5, is 6 at first. The step that has computed the 6 gives
    no token, and the next one computes the 5."""
    draws = iter([False, True, False, False, False, False, False])
    pilot = Pilot(count, slips=lambda: next(draws))
    op = generate("a", [1, 2, 3], sampling={"max_tokens": 4})
    assert pilot.run(op) == {"a": [4, 5, 6, 7]}
    assert pilot.steps == [[(0, 3)], [(3, 4)], [(4, 5)], [(4, 5)], [(5, 6)], []]


def test_a_cancel_between_launch_and_read_ends_the_op() -> None:
    """The token that is on its way is not reported. The op beside it is not disturbed."""
    pilot = Pilot(count)
    for name in ("a", "b"):
        pilot.book.submit(generate(name, [1, 2], sampling={"max_tokens": 5}))
    pilot.step()
    pilot.step()
    pilot.book.cancel("a")
    assert pilot.run() == {"a": [3], "b": [3, 4, 5, 6, 7]}
    assert [type(one).__name__ for one in pilot.events if one.op == "a"][-1] == "Failed"


def test_a_fault_that_is_known_after_a_preemption_leaves_no_blocks() -> None:
    """The logits of a throughput call are not finite, and a latency call has preempted it before
    the host knows. No other call finds what it has computed."""
    pilot = Pilot(count, blocks=4, checks=False)  # blocks that no call finds wait for eviction
    prompt = list(range(10, 19))
    bulk = generate("bulk", prompt, hints=api.Hints(criterion="throughput"))
    pilot.book.submit(bulk)
    pilot.step()
    assert pilot.flight is not None
    assert len(list(pilot.book.scheduler.tree.nodes())) == 2
    pilot.flight = pilot.flight[0], [Sampled(None, {})]
    said = pilot.run(generate("urgent", range(1, 9), sampling={"max_tokens": 1}))
    assert said == {"urgent": [9]}
    assert [one.op for one in pilot.events if isinstance(one, api.Failed)] == ["bulk"]
    assert {node.tokens[0] for node in pilot.book.scheduler.tree.nodes()} == {1, 5}
    pilot.book.free("urgent")
    pilot.run()
    assert pilot.book.scheduler.tree.available == 4


def script(chance: random.Random) -> list[api.Op]:
    """Prompts with common beginnings, all kinds of ends, fills, and contexts that are continued."""
    beginnings = [[chance.randint(1, 4) for _ in range(chance.randint(1, 12))] for _ in range(3)]
    ops: list[api.Op] = []
    for i in range(chance.randint(1, 7)):
        prompt = [*chance.choice(beginnings), *(chance.randint(1, 4) for _ in range(3))]
        parent = chance.choice([None, None, *(op.id for op in ops)])
        if chance.random() < 0.2:
            made: dict[str, Any] = {"context": f"op{i}", "tokens": tuple(prompt), "parent": parent}
            ops.append(api.Op(id=f"op{i}", kind=api.Kind.FILL, **made))
            continue
        sampling = {
            "max_tokens": chance.randint(1, 20),
            "ignore_eos": chance.random() < 0.3,
            "stop": chance.choice([(), (), ("w2 w3",), ("w3 ",)]),
            "pause_on": chance.choice([(), ("w1",)]),
        }
        ops.append(generate(f"op{i}", prompt, parent=parent, sampling=sampling))
    return ops


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000))
def test_overlap_changes_no_output(seed: int) -> None:
    """Random ops on a pool that may be too small for all of them, with draws that are repeated.

    Idle contexts are swapped out and brought back between steps.
    """
    chance = random.Random(seed)
    odd = chance.randint(3, 30)

    def language(tokens: Sequence[int]) -> int:
        return EOS if len(tokens) % odd == 0 else 1 + sum(tokens[-3:]) % 4

    ops, blocks = script(chance), chance.choice([40, 60, 120])
    slips = random.Random(seed + 1)
    plain = Pilot(language, blocks=blocks, overlaps=False)
    pilot = Pilot(language, blocks=blocks, slips=lambda: slips.random() < 0.05)
    expected = plain.run(*ops)
    for op in ops:
        pilot.book.submit(op)
        for _ in range(chance.randint(0, 3)):
            pilot.step()
            for context in list(pilot.book.contexts.named.values()):
                if chance.random() < 0.2:
                    pilot.book.retain(context.id, chance.choice(list(api.Retention)))
    assert pilot.run() == expected
    assert pilot.ends() == plain.ends()
    assert not any(isinstance(one, api.Failed) for one in pilot.events)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_verbs_between_steps_leave_a_sound_book(seed: int) -> None:
    """Ops are cancelled, freed and submitted again while their tokens are on their way. What was
    said is the beginning of what is said without, and in the end every block can be had."""
    chance = random.Random(seed)

    def language(tokens: Sequence[int]) -> int:
        return EOS if len(tokens) % 17 == 0 else 1 + sum(tokens[-3:]) % 4

    ops = script(chance)
    plain = Pilot(language, blocks=60, overlaps=False)
    expected = plain.run(*ops)
    pilot = Pilot(language, blocks=60)
    for op in ops:
        pilot.book.submit(op)

    def verb() -> None:
        one = chance.choice(ops)
        match chance.randrange(12):
            case 0:
                pilot.book.cancel(one.id)
            case 1:
                pilot.book.free(one.context)

    pilot.rest(verb)
    for name, tokens in pilot.said.items():
        assert expected[name][: len(tokens)] == tokens
    for op in ops:
        pilot.book.free(op.context)
    pilot.run()
    assert pilot.book.scheduler.tree.available == 60
