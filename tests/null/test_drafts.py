"""Drafts without a model: where guesses are found, when they pay, and what the bookkeeping makes of
them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine import api
from weftline_engine.bookkeeping.book import Book
from weftline_engine.bookkeeping.drafting.draft_counts import (
    LEAST_GAIN,
    MOST_DRAFTS,
    MOST_ROWS,
    StepCosts,
    counts,
)
from weftline_engine.bookkeeping.drafting.drafting import Drafting
from weftline_engine.bookkeeping.drafting.lookup import MOST_MATCHED, Lookup
from weftline_engine.bookkeeping.drafting.rates import Guess, GuessRates, GuessSource, OutputRate
from weftline_engine.bookkeeping.op_checks import EngineLimits
from weftline_engine.bookkeeping.op_table import Backend
from weftline_engine.bookkeeping.output import Sampled
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig, StepPlan
from weftline_engine.pretend.simulation import Words
from weftline_server.http.openai.replies import usage_body

# Rows cost nothing, so every draft pays; and rows cost as much as steps, so none does.
FREE = StepCosts(((1, 1.0), (16, 1.0)))
DEAR = StepCosts(((1, 1.0), (16, 16.0)))


# Lookup


def test_what_followed_the_last_tokens_follows_again() -> None:
    """The longest match wins over the latest one."""
    lookup = Lookup((), [1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3])
    assert lookup.after((), 4) == ((4, 9, 2, 3), 3)
    lookup.grow([1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3, 5, 9])
    assert lookup.after((), 3) == ((1, 2, 3), 4)


def test_a_token_alone_is_no_match() -> None:
    """A guess needs at least two equal tokens before it."""
    assert Lookup((), [7, 1, 8, 1]).after((), 3) == ((), 0)
    assert Lookup((), [7]).after((), 3) == ((), 0)


def test_a_repetition_goes_on() -> None:
    """The guess of a text that repeats itself continues the repetition beyond the text's end."""
    assert Lookup((), [5, 6, 7, 5, 6, 7, 5, 6, 7]).after((), 7) == ((5, 6, 7, 5, 6, 7, 5), 6)


def test_references_are_found_and_end_where_they_end() -> None:
    """What stands behind a reference belongs to another text."""
    lookup = Lookup(([1, 2, 3, 4], [8, 9]), [6, 2, 3])
    assert lookup.after((), 5) == ((4,), 2)
    assert lookup.after((4, 8), 5) == ((), 0)
    assert lookup.after((4, 1, 2), 5) == ((3, 4), 2)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=3),
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(1, 8),
)
def test_a_guess_stood_behind_a_match(
    references: list[list[int]], tokens: list[int], ahead: list[int], most: int
) -> None:
    """Whatever was indexed, token by token or at once: the text holds the match and the guess."""
    lookup = Lookup(references, tokens[: len(tokens) // 2])
    lookup.grow(tokens)
    found, matched = lookup.after(ahead, most)
    assert (found, matched) == Lookup(references, tokens).after(ahead, most)
    assert len(found) <= most and (matched >= 2) == bool(found) and matched <= MOST_MATCHED
    if found:
        end = [*tokens, *ahead]
        if matched > len(end):  # the match reaches into what stands before the own tokens
            return
        wanted = end[len(end) - matched :]
        texts = [*references, [*tokens, *found]]
        places = [
            at
            for text in texts
            for at in range(len(text) - matched + 1)
            if text[at : at + matched] == wanted
            and tuple(text[at + matched : at + matched + len(found)]) == found
        ]
        assert places or ahead


# Rates and the gate


def test_a_rate_is_learned_from_what_came_true() -> None:
    """Rates begin with an assumption, follow the observations, and differ between outputs."""
    rates, output = GuessRates(), OutputRate()
    long, short = Guess(1, GuessSource.LOOKUP, 9), Guess(1, GuessSource.LOOKUP, 2)
    assert [rates.of(short, output), rates.of(long, output)] == pytest.approx([0.3, 0.7])
    assert rates.of(Guess(1, GuessSource.GRAMMAR), output) == pytest.approx(0.9)
    for _ in range(200):
        rates.add(long, True, OutputRate())
        rates.add(short, False, OutputRate())
    assert rates.of(long, output) > 0.9 and rates.of(short, output) < 0.05
    for _ in range(20):
        rates.add(long, False, output)
    assert rates.of(long, output) < 0.2 < 0.6 < rates.of(long, OutputRate())


def test_the_seconds_of_a_step() -> None:
    """Seconds are interpolated between the measured rows, and longer contexts take longer."""
    costs = StepCosts(((1, 1.0), (4, 4.0), (8, 6.0)), length=100, attend_s=0.01)
    assert [costs.of(rows, 100 * rows) for rows in (1, 2, 4, 6, 8)] == [1.0, 2.0, 4.0, 5.0, 6.0]
    assert costs.of(2, 300) == pytest.approx(3.0)
    assert costs.most_rows == 8


def test_as_many_drafts_as_pay() -> None:
    """With rows of a tenth of a step, a draft needs a tenth of a token for each expected one."""
    costs = StepCosts(((1, 1.0), (16, 2.5)))
    assert counts([9], [[0.9] * 12], costs) == [10]
    assert counts([9], [[0.98] * 12], costs) == [MOST_DRAFTS]
    assert counts([9], [[0.5] * 12], costs) == [2]
    assert counts([9], [[0.1] * 12], costs) == [0]
    assert counts([9, 9], [[0.9] * 4, [0.3] * 4], costs) == [4, 0]
    assert counts([9], [[0.97] * 12], DEAR) == [0]
    assert counts([9] * 14, [[0.9] * 12] * 14, FREE) == [1, 1] + [0] * 12
    assert counts([9] * 15, [[0.9] * 12] * 15, FREE) == [0] * 15  # one row more gains 6 %


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=20),
    st.lists(st.lists(st.floats(0, 0.98), max_size=12), max_size=20),
    st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4),
    st.floats(0, 1e-4),
)
def test_drafts_are_chosen_only_for_a_gain(
    lengths: list[int], some: list[list[float]], steps: list[float], attend_s: float
) -> None:
    """The step's expected tokens a second grow, and its rows stay within the bound."""
    chances = [*some, *[[]] * len(lengths)][: len(lengths)]
    seconds = [1.0 + sum(steps[:n]) for n in range(5)]
    costs = StepCosts(tuple(zip((1, 2, 4, 8, 16), seconds, strict=True)), 512, attend_s)
    chosen = counts(lengths, chances, costs)
    if not any(chosen):
        return
    assert len(lengths) + sum(chosen) <= MOST_ROWS
    expected, tokens = float(len(lengths)), sum(lengths)
    for count, own, length in zip(chosen, chances, lengths, strict=True):
        chance = 1.0
        for one in own[:count]:
            chance *= one
            expected += chance
            tokens += length
    before = len(lengths) / costs.of(len(lengths), sum(lengths))
    assert expected / costs.of(len(lengths) + sum(chosen), tokens) > LEAST_GAIN * before * 0.999
    assert costs.can_pay(lengths)


# The bookkeeping

SIZE = 4
Language = Callable[[Sequence[int]], int]


@dataclass
class Desk:
    """A book whose model is a function of the tokens so far."""

    language: Language
    blocks: int = 32
    drafts: bool = True
    rows: list[int] = field(default_factory=list)  # of each step
    events: list[api.Event] = field(default_factory=list)
    kv: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = SchedulerConfig(blocks=self.blocks, block_size=SIZE, max_running=4, step_tokens=16)
        limits = EngineLimits(context=self.blocks * SIZE, vocabulary=100, eos=(99,))
        self.book = Book(config, limits, Words(), Backend(), clock=lambda: 0.0)
        self.book.draft(FREE if self.drafts else None)

    def run(self, *ops: api.Op) -> dict[str, list[int]]:
        for op in ops:
            self.book.submit(op)
        for _ in range(600):
            self.step()
            if not self.book.busy:
                said: dict[str, list[int]] = {op.id: [] for op in ops}
                for event in self.events:
                    if isinstance(event, api.Part) and event.op in said:
                        said[event.op] += event.tokens
                return said
        raise AssertionError("the book does not come to rest")

    def step(self) -> None:
        plan = self.book.plan()
        self.compute(plan)
        sampling = self.book.apply(plan)
        self.book.record(sampling, [self.verify(chunk) for chunk in plan.chunks if chunk.samples])
        self.events += self.book.end_step(plan)
        self.validate()

    def compute(self, plan: StepPlan) -> None:
        """Every row reads the very prefix that it stands behind."""
        copied = {
            (target, at): self.kv[source, at]
            for source, target in plan.copies
            for at in range(SIZE)
            if (source, at) in self.kv
        }
        self.kv |= copied
        self.rows.append(sum(chunk.rows for chunk in plan.chunks))
        for chunk in plan.chunks:
            tokens = (*chunk.sequence.tokens[: chunk.stop], *chunk.drafts)
            for at in range(chunk.start, chunk.start + chunk.rows):
                self.kv[chunk.blocks[at // SIZE], at % SIZE] = tokens[: at + 1]
        for chunk in plan.chunks:
            tokens = (*chunk.sequence.tokens[: chunk.stop], *chunk.drafts)
            for at in range(len(tokens)):
                assert self.kv[chunk.blocks[at // SIZE], at % SIZE] == tokens[: at + 1]

    def verify(self, chunk: Any) -> list[Sampled]:
        """The accepted drafts, and one token more."""
        tokens, found = list(chunk.sequence.tokens), []
        for draft in (*chunk.drafts, None):
            found.append(Sampled(self.language(tokens), {}))
            tokens.append(found[-1].token)
            if found[-1].token != draft:
                break
        return found

    def validate(self) -> None:
        """Every block is free, in the tree or a sequence's own, and none holds rejected drafts."""
        scheduler = self.book.scheduler
        sequences = [*scheduler.running, *scheduler.waiting]
        own = sum(len(one.blocks) - len(one.held) for one in sequences)
        nodes = list(scheduler.tree.nodes())
        assert scheduler.pool.free + len(nodes) + own == scheduler.pool.count
        for one in sequences:
            assert len(one.blocks) == max(len(one.held), -(-one.computed // SIZE))
            assert one.computed <= len(one.tokens)
        for node in nodes:
            rows = [self.kv[node.block, at] for at in range(len(node.tokens))]
            assert tuple(row[-1] for row in rows) == node.tokens

    def usage(self, op: str) -> api.Usage:
        return next(
            one.usage for one in self.events if isinstance(one, api.Finished) and one.op == op
        )


def generate(name: str, tokens: Sequence[int], **options: Any) -> api.Op:
    sampling = {"max_tokens": 12, "temperature": 0.0, **options.pop("sampling", {})}
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=f"{name}.context",
        tokens=tuple(tokens),
        sampling=api.SamplingParams(**sampling),
        **options,
    )


def echo(period: int) -> Language:
    """Says again what stands `period` tokens back."""
    return lambda tokens: tokens[-period] if len(tokens) >= period else 1


def test_a_repeated_text_takes_few_steps() -> None:
    """The first guess is made when two tokens of the output repeat the prompt."""
    op = generate("a", [1, 2, 3, 4, 5, 6, 7], sampling={"max_tokens": 30})
    plain, drafted = Desk(echo(7), drafts=False), Desk(echo(7))
    expected = plain.run(op)
    assert drafted.run(op) == expected
    assert len(expected["a"]) == 30
    # The prompt; two tokens one by one; 27 more, of which a step generates 12 at most.
    assert (plain.rows, drafted.rows) == ([7, *[1] * 29], [7, 1, 12, 12, 4])
    usage = drafted.usage("a")
    assert (usage.drafted_tokens, usage.accepted_tokens, usage.output_tokens) == (25, 25, 30)
    assert (plain.usage("a").drafted_tokens, plain.usage("a").accepted_tokens) == (0, 0)


def test_the_end_within_accepted_drafts_is_the_end() -> None:
    """A stop string, the model's end and max_tokens end an output at the token that they end it at
    without drafts. Drafts behind it count as rejected."""
    prompt = [1, 2, 3, 4, 5, 6, 1, 2]
    for sampling, said in (
        ({"stop": ("w5 ",), "max_tokens": 50}, [3, 4, 5]),
        ({"max_tokens": 4}, [3, 4, 5, 6]),
    ):
        desk = Desk(echo(6))
        assert desk.run(generate("a", prompt, sampling=sampling)) == {"a": said}
        assert Desk(echo(6), drafts=False).run(generate("a", prompt, sampling=sampling)) == {
            "a": said
        }
        usage = desk.usage("a")
        assert usage.output_tokens == len(said)
        assert usage.accepted_tokens == 2
    desk = Desk(echo(5))
    assert desk.run(generate("a", [1, 2, 99, 3, 4, 1]))["a"] == [2, 99]
    assert desk.usage("a").accepted_tokens <= desk.usage("a").drafted_tokens


def test_a_sibling_s_output_is_drafted_from() -> None:
    """The second op says what the first has said, which its prompt does not hold. It finds it by
    the name of the first one's context, while that is kept and after it was freed."""
    answer = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]

    def language(tokens: Sequence[int]) -> int:
        return answer[answer.index(tokens[-1]) + 1 if tokens[-1] in answer[:-1] else 0]

    for freed in (False, True):
        desk = Desk(language)
        desk.run(generate("a", [1, 2]))
        if freed:
            desk.book.free("a.context")
        desk.rows.clear()
        op = generate("b", [3, 4], guesses=api.Guesses(references=("nothing", "a.context")))
        assert desk.run(op)["b"] == answer
        assert desk.usage("b").accepted_tokens == 9
        assert desk.rows == [2, 1, 10]


def test_another_salt_s_context_is_no_reference() -> None:
    """A context is found only with the salt that it was made with."""
    desk = Desk(echo(3))
    desk.run(generate("a", [1, 2, 3], salt="x"))
    assert desk.book.ops.tokens_of("a.context", "x") is not None
    assert desk.book.ops.tokens_of("a.context", "y") is None


def test_outputs_of_one_constraint_are_remembered_within_a_salt() -> None:
    """The bookkeeping gives a drafter the last output under the same constraint and salt."""
    drafting = Drafting(FREE, Backend(), lambda name, salt: None)
    sampling = {"constraint": "{}"}
    drafting.remember(generate("a", [1], sampling=sampling), [5, 6, 7, 8])
    own = drafting.start(generate("b", [1], sampling=sampling), [1, 5, 6])
    assert own.texts.after((), 9) == ((7, 8), 2)
    for other in (
        generate("c", [1], sampling=sampling, salt="x"),
        generate("d", [1], sampling={"constraint": "[]"}),
        generate("e", [1]),
    ):
        assert drafting.start(other, [1, 5, 6]).texts.after((), 9) == ((), 0)


def test_a_full_pool_drafts_as_far_as_it_has_room() -> None:
    """Two sequences fill the pool; drafts take only blocks that nobody holds."""
    ops = [generate(f"op{i}", [i, 5, 6, 7], sampling={"max_tokens": 14}) for i in range(3)]
    plain, drafted = Desk(echo(4), blocks=9, drafts=False), Desk(echo(4), blocks=9)
    assert drafted.run(*ops) == plain.run(*ops)
    assert len(drafted.rows) < len(plain.rows)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_drafts_change_no_output(seed: int) -> None:
    """Random languages that half repeat themselves, prompts with common beginnings, contexts that
    are continued, a pool that may be too small for all, and calls that are cancelled."""
    chance = random.Random(seed)
    period, odd = chance.randint(2, 6), chance.randint(5, 40)

    def language(tokens: Sequence[int]) -> int:
        if len(tokens) % odd == 0:
            return sum(tokens[-3:]) % 99
        return tokens[-period] if len(tokens) >= period else 1

    prompts = [[chance.randint(1, 4) for _ in range(chance.randint(1, 12))] for _ in range(3)]
    ops = []
    for i in range(chance.randint(1, 6)):
        prompt = [*chance.choice(prompts), *(chance.randint(1, 4) for _ in range(3))]
        length = chance.randint(1, 25)
        ops.append(
            generate(
                f"op{i}",
                prompt,
                sampling={"max_tokens": length, "ignore_eos": True},
                guesses=api.Guesses(references=tuple(f"op{j}.context" for j in range(i))),
            )
        )
    if chance.random() < 0.5:
        ops.append(replace(generate("child", [2, 3]), parent="op0.context"))
    blocks = chance.choice([14, 20, 64])
    plain, drafted = (Desk(language, blocks=blocks, drafts=drafts) for drafts in (False, True))
    expected = plain.run(*ops)
    assert drafted.run(*ops) == expected
    assert sum(drafted.rows) >= len(drafted.rows)
    for op in ops:
        usage = drafted.usage(op.id)
        assert usage.output_tokens == plain.usage(op.id).output_tokens
        assert 0 <= usage.accepted_tokens <= usage.drafted_tokens


def test_steps_with_prompts_get_no_drafts() -> None:
    """A prompt fills the step's arithmetic, where a row more is not free."""
    desk = Desk(echo(3))
    desk.book.submit(generate("a", [1, 2, 3], sampling={"max_tokens": 40}))
    desk.step()
    desk.step()
    desk.book.submit(generate("b", [4] * 9))
    plan = desk.book.plan()
    assert [len(chunk.drafts) for chunk in plan.chunks] == [0, 0]
    assert [chunk.rows for chunk in plan.chunks] == [1, 9]


def test_openai_s_usage_counts_drafts_as_predictions() -> None:
    """Two choices of one prompt: their drafts add up, and accepted ones are part of the output."""
    usage = api.Usage(
        prompt_tokens=9,
        cached_tokens=0,
        output_tokens=20,
        started=0.0,
        filled=0.0,
        drafted_tokens=8,
        accepted_tokens=5,
    )
    other = replace(usage, drafted_tokens=4, accepted_tokens=4)
    body = usage_body([usage, other], 2)
    assert body["completion_tokens"] == 40
    assert body["completion_tokens_details"] == {
        "accepted_prediction_tokens": 9,
        "rejected_prediction_tokens": 3,
    }
