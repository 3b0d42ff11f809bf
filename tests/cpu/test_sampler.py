"""Penalties, log probabilities and limits of an output equal a plain version of their rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weftline_engine.api import FinishReason, Kind, Op, Part, SamplingParams
from weftline_engine.own.embedded.sample.constraint import NoGrammars
from weftline_engine.own.embedded.sample.sampler import Sampler

Make = Callable[..., Any]
GREEDY = SamplingParams(max_tokens=9, temperature=0)
REQUESTS = [
    GREEDY,
    replace(GREEDY, presence_penalty=1.5),
    replace(GREEDY, frequency_penalty=0.7, presence_penalty=-0.3),
    replace(GREEDY, repetition_penalty=1.9),
    replace(GREEDY, repetition_penalty=0.8, frequency_penalty=2.0, logprobs=2),
    replace(GREEDY, logprobs=0),
]


def log_softmax(logits: Any) -> Any:
    """The log probabilities of rows."""
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def penalised(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Apply repetition, then frequency and presence penalties, token by token."""
    changed = []
    for token, x in enumerate(logits):
        if token in prompt or token in output:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        x -= params.frequency_penalty * output.count(token)
        x -= params.presence_penalty * (token in output)
        changed.append(x)
    return changed


@pytest.mark.parametrize("seed", range(5))
def test_penalties_and_logprobs_are_the_plain_rules(seed: int) -> None:
    """Six requests decode 30 tokens of a vocabulary of 8 together, in rows that others
    used before.
    """
    generator = np.random.default_rng(seed)
    sampler = Sampler(2, 8, (), NoGrammars())
    before = [sampler.add(REQUESTS[2], 0) for _ in range(3)]
    for slot in before:
        sampler.begin(slot, REQUESTS[2], [1, 2, 3])
        sampler.choose(np.zeros((1, 8), np.float32), [slot], [0])
    for slot in before:
        sampler.remove(slot)
    slots = [sampler.add(params, 0) for params in REQUESTS]
    prompts = generator.integers(0, 8, (6, 3)).tolist()
    for slot, params, prompt in zip(slots, REQUESTS, prompts, strict=True):
        sampler.begin(slot, params, prompt)
    outputs: list[list[int]] = [[] for _ in REQUESTS]
    for step in range(30):
        order = generator.permutation(6)[: 1 + step % 6].tolist()
        logits = generator.normal(size=(len(order), 8)) * 3
        chosen = sampler.choose(logits.copy(), [slots[i] for i in order], [step] * len(order))
        for row, i in enumerate(order):
            expected = penalised(logits[row].tolist(), REQUESTS[i], prompts[i], outputs[i])
            assert chosen.tokens[row] == int(np.argmax(expected))
            outputs[i].append(chosen.tokens[row])
            plain = np.log(np.exp(logits[row]) / np.exp(logits[row]).sum())
            best = np.argsort(-plain)[: REQUESTS[i].logprobs or 0].tolist()
            said = chosen.logprobs[row]
            if REQUESTS[i].logprobs is None:
                assert said == {}
                continue
            assert said["logprobs"] == pytest.approx([plain[chosen.tokens[row]]])
            assert said["top_tokens"] == tuple(best)
            assert said["top_logprobs"] == pytest.approx(plain[best].tolist())


def test_a_row_of_nan_counts_nothing() -> None:
    """A row without a token changes no penalty: its next token is the likeliest one, and the other
    row's is penalised."""
    sampler = Sampler(2, 4, (), NoGrammars())
    params = replace(GREEDY, presence_penalty=2.0, logprobs=1)
    slots = [sampler.add(params, 0), sampler.add(params, 0)]
    for slot in slots:
        sampler.begin(slot, params, [0])
    logits = np.array([[0.0, 1.0, 0.5, 0.0], [float("nan")] * 4], np.float32)
    assert sampler.choose(logits.copy(), slots, [0, 0]).tokens == [1, None]
    logits[1] = logits[0]
    assert sampler.choose(logits.copy(), slots, [1, 1]).tokens == [2, 1]


def test_a_row_that_is_drawn_again_says_so() -> None:
    """Its log probability is that of the token that it has in the end."""
    sampler = Sampler(1, 3000, (), NoGrammars())
    params = SamplingParams(max_tokens=9, top_p=0.9, logprobs=0)
    slots = [sampler.add(params, seed) for seed in (1, 2)]
    logits = np.linspace(0, 0.5, 6000, dtype=np.float32).reshape(2, 3000)
    logits[1, 5] = 100
    drawn = sampler.draw(logits.copy(), slots, [0, 0])
    assert drawn.next_R.tolist() == [0, 5]
    chosen = sampler.read(drawn)
    token = chosen.tokens[0]
    assert chosen.redrawn == {0} and token and chosen.tokens[1] == 5
    plain = log_softmax(logits)
    said = [one["logprobs"][0] for one in chosen.logprobs]
    assert said == pytest.approx([float(plain[0, token]), 0.0])


def ops(tokens_of: Make) -> list[Op]:
    """One op for each way to sample, on prompts of different lengths."""
    ways: list[dict[str, Any]] = [
        {},
        {"min_p": 0.1, "temperature": 1.5},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3, "top_k": 20, "logprobs": 3},
        {"top_p": 0.8, "logprobs": 0},
    ]
    return [
        Op(
            id=f"op{i}",
            kind=Kind.GENERATE,
            context=f"op{i}",
            tokens=tokens_of(i, 10 + 7 * i),
            sampling=SamplingParams(max_tokens=20, seed=i, ignore_eos=True, **way),
        )
        for i, way in enumerate(ways)
    ]


def test_a_seed_gives_the_same_alone_in_a_batch_and_after_preemption(
    make_bench: Make, tokens_of: Make
) -> None:
    """All five run together, one by one, and together in a pool that holds two of them."""
    alone = [make_bench().run(op)[0].tokens for op in ops(tokens_of)]
    assert [out.tokens for out in make_bench().run(*ops(tokens_of))] == alone
    small = make_bench(blocks=14, block_size=8, step_tokens=70)
    assert [out.tokens for out in small.run(*ops(tokens_of))] == alone
    assert len({tuple(tokens) for tokens in alone}) == 5


def test_parts_carry_the_log_probabilities_that_were_asked_for(
    make_bench: Make, tokens_of: Make
) -> None:
    """Ops that ask for none get none. A chosen token has the same number alone and among the
    alternatives."""
    outcomes = make_bench().run(*ops(tokens_of))
    counts = []
    for outcome in outcomes:
        parts = [event for event in outcome.events if isinstance(event, Part)]
        (shape,) = {(len(p.logprobs), len(p.top_tokens), len(p.top_logprobs)) for p in parts}
        counts.append(shape)
        for part in parts:
            if part.tokens[0] in part.top_tokens:
                at = part.top_tokens.index(part.tokens[0])
                assert part.top_logprobs[at] == part.logprobs[0]
    assert counts == [(0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 3, 3), (1, 0, 0)]


def test_the_end_of_text_is_kept_back_or_ignored(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """The model prefers its end token 0. It ends the output at once, or after the minimum number of
    tokens, or never.
    """

    def probe(logits_RV: np.ndarray, names: list[str]) -> None:
        logits_RV[:, 0] = 1e4

    def run(**options: Any) -> tuple[int, FinishReason]:
        outcome = make_bench(probe=probe).run(generate("op", tokens_of(1, 9), **options))[0]
        return len(outcome.tokens), outcome.finished.reason

    assert run(ignore_eos=False) == (1, FinishReason.STOP)
    assert run(ignore_eos=False, min_tokens=4) == (5, FinishReason.STOP)
    assert run(ignore_eos=True) == (12, FinishReason.LENGTH)
    assert run(ignore_eos=False, min_tokens=9, max_tokens=6) == (6, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"logprobs": 21}, "0 to 20"),
    ],
)
def test_a_parameter_out_of_range_is_refused(
    options: dict[str, Any], says: str, make_bench: Make, generate: Make
) -> None:
    """The engine checks what a server should have checked, and names the parameter."""
    failed = make_bench().run(generate("op", [1, 2], **options))[0].failed
    assert failed.error == "InvalidRequest"
    assert says in failed.message


def test_a_bias_is_added_bans_and_forces() -> None:
    """Four rows of the same logits in one step. The one without a bias is as it would be alone, and
    the log probabilities are the model's in all of them."""
    sampler = Sampler(2, 5, (4,), NoGrammars())
    logits = np.array([[3.0, 2.0, 1.0, 0.0, -1.0]], np.float32)
    plain = log_softmax(logits)[0].tolist()
    biases: list[tuple[tuple[int, float], ...]] = [
        (),
        ((0, -0.5), (2, 2.5)),
        ((0, -100.0), (1, -100.0), (3, 1.5)),
        ((3, 100.0), (4, 100.0), (0, 99.0)),
    ]
    slots = []
    for bias in biases:
        params = replace(GREEDY, logit_bias=bias, logprobs=0)
        slots.append(sampler.add(params, 0))
        sampler.begin(slots[-1], params, [0])
    chosen = sampler.choose(logits.repeat(4, axis=0), slots, [0] * 4)
    assert chosen.tokens == [0, 2, 3, 3]
    said = [one["logprobs"][0] for one in chosen.logprobs]
    assert said == pytest.approx([plain[0], plain[2], plain[3], plain[3]])
    sampler.remove(slots[3])
    again = sampler.add(GREEDY, 0)  # the same slot
    sampler.begin(again, GREEDY, [0])
    assert again == slots[3]
    assert sampler.choose(logits.copy(), [again], [0]).tokens == [0]


@pytest.mark.parametrize("top", [{}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.001}])
def test_a_banned_token_is_never_drawn(top: dict[str, Any]) -> None:
    """Token 0 is by far the likeliest. At the highest temperature, 2,000 draws are of others."""
    sampler = Sampler(1, 4, (), NoGrammars())
    params = SamplingParams(max_tokens=1, temperature=100.0, logit_bias=((0, -100.0),), **top)
    slot = sampler.add(params, 7)
    sampler.begin(slot, params, [0])
    logits = np.array([[90.0, 2.0, 1.0, 0.0]], np.float32)
    drawn = {sampler.choose(logits.copy(), [slot], [at]).tokens[0] for at in range(2000)}
    assert drawn == {1, 2, 3}


def test_a_ban_leaves_a_token() -> None:
    """min_tokens forbids the end, and the bias forbids the rest: the bias gives way. Behind
    min_tokens the forced end comes. A row that is not finite stays so."""
    sampler = Sampler(2, 3, (2,), NoGrammars())
    params = replace(GREEDY, min_tokens=1, logit_bias=((2, 100.0),))
    slots = [sampler.add(params, 0), sampler.add(params, 0)]
    for slot in slots:
        sampler.begin(slot, params, [0])
    logits = np.array([[0.0, 1.0, 0.0], [float("nan")] * 3], np.float32)
    assert sampler.choose(logits.copy(), slots, [0, 0]).tokens == [1, None]
    assert sampler.choose(logits.copy(), slots, [1, 1]).tokens == [2, None]


def test_biases_are_the_same_alone_in_a_batch_and_after_preemption(
    make_bench: Make, tokens_of: Make
) -> None:
    """On the tiny model: banned tokens do not come, forced ones alone do, and ops without a bias
    have the tokens that they have without others."""
    banned = tuple((token, -100.0) for token in range(128))
    forced = ((200, 100.0), (201, 100.0))
    ways = [(), banned, forced, ((65, 5.0), (66, -5.0)), ()]
    biased = [
        replace(op, sampling=replace(op.sampling, logit_bias=way))
        for op, way in zip(ops(tokens_of), ways, strict=True)
        if op.sampling is not None
    ]
    alone = [make_bench().run(op)[0].tokens for op in biased]
    assert min(alone[1]) >= 128 and set(alone[2]) == {200, 201}
    plain = [make_bench().run(op)[0].tokens for op in ops(tokens_of)]
    assert [alone[0], alone[4]] == [plain[0], plain[4]] and alone[3] != plain[3]
    assert [out.tokens for out in make_bench().run(*biased)] == alone
    small = make_bench(blocks=14, block_size=8, step_tokens=70)
    assert [out.tokens for out in small.run(*biased)] == alone


def test_a_bias_beyond_the_vocabulary_fails_its_op(make_bench: Make, generate: Make) -> None:
    """The other op of the step has its tokens."""
    bad = generate("bad", [1, 2], logit_bias=((5, 1.0), (256, 1.0)))
    failed, good = make_bench().run(bad, generate("good", [1, 2]))
    assert (failed.failed.error, failed.failed.param) == ("InvalidRequest", "logit_bias")
    assert failed.failed.message == "logit_bias names token 256: the model's ids end at 255"
    assert len(good.tokens) == 12
