"""Drafts on real models: the same bits on and off, and the same distribution."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from tests.cpu.conftest import Bench, ByteDetokenizerOfTest, Outcome
from weftline_engine.api import Guesses, Op, Part
from weftline_engine.bookkeeping.drafting.draft_counts import MOST_ROWS, StepCosts
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.constraints.grammars import TokenGrammars
from weftline_engine.own.detokenizer import ByteDetokenizer
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.host_device import HOST
from weftline_engine.own.embedded.model.base import StepInput
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_kernels.cpu.blocks import WeightType
from weftline_kernels.work_list import SequenceRows, build

Make = Callable[..., Any]
FREE = StepCosts(((1, 1.0), (MOST_ROWS, 1.0)))  # every draft pays
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "name": {"enum": ["Ada", "Alan", "Alonzo"]}},
    "required": ["age", "name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def native(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> NativeDecoder:
    decoder = load_decoder(tiny_directory, "bfloat16", 16, tmp_path_factory.mktemp("kernels"))
    if not isinstance(decoder, NativeDecoder):
        pytest.skip("no compiler builds the C decoder here")
    return decoder


@pytest.fixture(params=["bfloat16", "q4_0"])
def variant(request: pytest.FixtureRequest, built: Any, tiny_directory: Path) -> NativeDecoder:
    """The decoder of each variant that this machine runs."""
    config = read_config(tiny_directory)
    assert isinstance(config, LlamaConfig)
    weights, kind = Checkpoint(tiny_directory), request.param
    quantise = WeightType.Q4_0 if kind == "q4_0" else None
    return NativeDecoder(config, weights, built, quantise=quantise)


@pytest.fixture(scope="module")
def grammars(tiny_directory: Path) -> TokenGrammars:
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    return TokenGrammars(tokenizer.to_str(), 256, [0])


def bench(decoder: Any, drafts: bool, *, text: Any = None, **options: Any) -> Bench:
    config = SchedulerConfig(blocks=256, max_running=8, step_tokens=64)
    core = Core(decoder, config, text or ByteDetokenizerOfTest(), **options)
    core.draft(FREE if drafts else None)
    return Bench(core)


def said(outcome: Outcome) -> Any:
    """Everything about an output that a client can see, but how it was drafted."""
    parts = [one for one in outcome.events if isinstance(one, Part)]
    bits = [(part.tokens, part.text, part.logprobs, part.top_logprobs) for part in parts]
    end = outcome.finished
    if end is None:
        return bits, outcome.failed
    return bits, end.reason, end.usage.prompt_tokens, end.usage.output_tokens


def chunked(decoder: NativeDecoder, tokens: Tensor, counts: list[int]) -> tuple[Any, Any]:
    """Logits of every row of one sequence that is computed in these chunks, and its KV cache."""
    cache, blocks, found, start = decoder.new_cache(32, 16), list(range(31, -1, -1)), [], 0
    for count in counts:
        at = np.arange(start, start + count)
        step = StepInput(
            tokens[start : start + count].numpy(),
            at,
            np.asarray(blocks)[at // 16] * 16 + at % 16,
            np.arange(count),
            build([SequenceRows(blocks, 0, count, start)], 16),
        )
        found.append(decoder.forward(step, cache))
        start += count
    return np.concatenate(found), cache


def test_a_row_has_the_same_bits_with_drafts_behind_it(variant: NativeDecoder) -> None:
    """Behind 300 tokens, where attention is cut into parts, 1 to 16 rows are computed at once. The
    logits and the keys and values are those of rows that are computed alone."""
    tokens = torch.randint(0, 256, (480,), generator=torch.Generator().manual_seed(1))
    several = [300, *range(1, MOST_ROWS + 1)]
    alone, alone_cache = chunked(variant, tokens, [300, *[1] * sum(several[1:])])
    together, cache = chunked(variant, tokens, several)
    assert np.array_equal(alone, together)
    assert np.array_equal(alone_cache, cache)


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.7, "seed": 5},
    "cut": {"temperature": 1.2, "seed": 6, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
    "unseeded": {"temperature": 0.4},
    "penalties": {"frequency_penalty": 0.6, "presence_penalty": 0.2, "repetition_penalty": 1.2},
    "logprobs": {"logprobs": 3},
    "end": {"ignore_eos": False, "min_tokens": 9, "temperature": 0.9, "seed": 7},
    "stop": {"stop": ("a", "e", "\x01"), "min_tokens": 4},
    "schema": {"constraint": json.dumps({"json_schema": SCHEMA}), "temperature": 0.6, "seed": 1},
    "choice": {"constraint": json.dumps({"choice": ["right", "wrong", "rightly so"]})},
    "pattern": {"constraint": json.dumps({"regex": "(abcabd|abd){2,6}!"})},
    "bias": {"logit_bias": ((97, 3.0), (98, -100.0), (99, -2.5)), "temperature": 0.8, "seed": 8},
    "forced": {"logit_bias": ((97, 100.0), (98, 100.0))},
    "bias of a choice": {
        "constraint": json.dumps({"choice": ["right", "wrong", "rightly so"]}),
        "logit_bias": ((119, -100.0),),
    },
}


@pytest.mark.parametrize("seed", range(3))
def test_outputs_have_the_same_bits_on_and_off(
    seed: int, native: NativeDecoder, grammars: TokenGrammars, generate: Make
) -> None:
    """Random requests, some sampled and some under a grammar, give the same tokens and logits."""
    same_on_and_off(native, seed, grammars, generate)


def test_every_variant_has_the_same_bits_on_and_off(
    variant: NativeDecoder, grammars: TokenGrammars, generate: Make
) -> None:
    """Each instruction set that this machine has keeps the promise."""
    same_on_and_off(variant, 3, grammars, generate)


def same_on_and_off(decoder: Any, seed: int, grammars: TokenGrammars, generate: Make) -> None:
    """Random prompts that repeat themselves, of up to 330 tokens, and every kind of sampling. They
    run alone and together, some continue the first one's context, and some repeat a sibling.

    Common prefixes are not read together, because a merge's last bits depend on the batch, which
    drafts change.
    """
    chance = random.Random(seed)
    ops: list[Op] = []
    for number, (name, sampling) in enumerate(SAMPLINGS.items()):
        words = [[chance.randint(1, 255) for _ in range(chance.randint(2, 6))] for _ in range(4)]
        count = chance.choice([3, 12, 75])
        prompt = [token for _ in range(count) for token in chance.choice(words)]
        op = generate(name, prompt, **{"max_tokens": 40, **sampling})
        op = replace(op, guesses=Guesses(references=tuple(one.context for one in ops[-3:])))
        if number and chance.random() < 0.3:
            op = replace(op, parent=ops[0].context)
        ops.append(op)

    def outputs(drafts: bool) -> Iterator[tuple[Any, int, int]]:
        # The unseeded op draws by its id, which is the same in both.
        one = bench(decoder, drafts, grammars=grammars, tree_attention=False)
        outcomes = [*one.run(*ops[:5]), *(one.run(op)[0] for op in ops[5:])]
        for outcome in outcomes:
            assert outcome.finished is not None, outcome.failed
            usage = outcome.finished.usage
            yield said(outcome), usage.drafted_tokens, usage.accepted_tokens

    plain, drafted = list(outputs(False)), list(outputs(True))
    assert [one for one, _, _ in drafted] == [one for one, _, _ in plain]
    assert sum(count for _, count, _ in plain) == 0
    assert sum(count for _, _, count in drafted) > 20
    assert drafted == list(outputs(True))


def test_a_real_model_says_the_same_on_and_off(
    smollm2_directory: Path, tmp_path: Path, generate: Make
) -> None:
    """SmolLM2 continues a list that repeats itself, greedily and with a seed, and fills in a form.
    Random tokens stand before the list, so that not all is easy to guess."""
    decoder = load_decoder(smollm2_directory, "bfloat16", 16, tmp_path)
    if not isinstance(decoder, NativeDecoder):
        pytest.skip("no compiler builds the C decoder here")
    path = smollm2_directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    chance = random.Random(2)
    text = "red, green, blue and white; red, green, blue and white; red, green"
    list_ = [*(chance.randint(20, 40_000) for _ in range(9)), *tokenizer.encode(text).ids]
    form = "<|im_start|>user\nWho is Ada, 36?<|im_end|>\n<|im_start|>assistant\n"
    constraint = json.dumps({"json_schema": SCHEMA})
    options: dict[str, Any] = {"max_tokens": 14, "ignore_eos": False}
    found = []
    for drafts in (False, True):
        grammars = TokenGrammars(path.read_text(), decoder.config.vocabulary, decoder.config.eos)
        one = bench(decoder, drafts, grammars=grammars, text=ByteDetokenizer(tokenizer))
        ops = (
            generate("greedy", list_, **options),
            generate("seeded", list_, temperature=0.8, seed=4, **options),
            generate("form", tokenizer.encode(form).ids, constraint=constraint, **options),
        )
        outcomes = [one.run(op)[0] for op in ops]
        found.append([said(outcome) for outcome in outcomes])
        accepted = [
            outcome.finished.usage.accepted_tokens for outcome in outcomes if outcome.finished
        ]
        assert [count > 0 for count in accepted] == [drafts] * 3
    assert found[0] == found[1]


def test_forced_tokens_are_drafted(
    native: NativeDecoder, grammars: TokenGrammars, generate: Make
) -> None:
    """Behind its first letter a choice has one way to go on: the other six come in one step. Only
    the last one is not forced, for a token could also hold what follows it."""
    constraint = json.dumps({"choice": ["sunday", "monday"]})
    one = bench(native, True, grammars=grammars)
    [outcome] = one.run(generate("op", [1, 2, 3], constraint=constraint))
    assert outcome.text in ("sunday", "monday") and outcome.finished is not None
    usage = outcome.finished.usage
    assert (usage.output_tokens >= 6, usage.accepted_tokens) == (True, usage.drafted_tokens)
    assert usage.accepted_tokens >= 4


class Markov:
    """A model whose next token depends on the last one alone, by a table of probabilities."""

    device = HOST
    min_blocks_saved = 1
    overlaps = False

    def __init__(self, table: list[list[float]], config: Any) -> None:
        self.config = replace(config, vocabulary=len(table), eos=())
        self._logits = np.log(np.array(table, np.float32))

    def forward(self, step: StepInput, cache: Any, /) -> Any:
        return self._logits[step.tokens_T[step.rows_R]]

    def new_cache(self, blocks: int, block_size: int) -> Any:
        return np.zeros((1, 2, 1, blocks, block_size, 1))


def test_a_draft_without_finite_logits_ends_only_its_op(
    native: NativeDecoder, generate: Make
) -> None:
    """What such a draft wrote into the cache would make later rows NaN, so the op ends and its
    blocks are wiped. Here the last row is spoilt, which no output needs."""
    cycle = Markov([[0.01, 0.97, 0.02], [0.02, 0.01, 0.97], [0.97, 0.02, 0.01]], native.config)
    spoilt: list[int] = []

    def probe(logits_RV: Any, ops: list[str]) -> None:
        rows = [row for row, op in enumerate(ops) if op == "bad"]
        if len(rows) > 1:
            spoilt.append(rows[-1])
            logits_RV[rows[-1]] = float("nan")

    one = bench(cycle, True, probe=probe)
    good, bad = one.run(*(generate(name, [0, 1, 2, 0], max_tokens=30) for name in ("good", "bad")))
    assert len(spoilt) == 1
    assert bad.failed is not None and "finite" in bad.failed.message
    assert good.tokens == [1, 2, 0] * 10
    [again] = one.run(generate("again", [0, 1, 2, 0], max_tokens=30))
    assert again.tokens == good.tokens


def test_sampled_outputs_keep_their_distribution(native: NativeDecoder, generate: Make) -> None:
    """120 outputs of 40 tokens without a seed. How often each token follows each other one is as
    the table says, by a chi-square test with 12 degrees of freedom (99.9 %: 32.9). And each output
    is, to the token, the one without drafts."""
    table = [[0.2, 0.5, 0.2, 0.1], [0.1, 0.1, 0.6, 0.2], [0.25] * 4, [0.4, 0.3, 0.2, 0.1]]
    found = []
    for drafts in (False, True):
        one = bench(Markov(table, native.config), drafts)
        options = {"temperature": 1.0, "max_tokens": 40}
        outputs, accepted, rejected = [], 0, 0
        for number in range(0, 120, 4):
            ops = [generate(f"{number + i:08}", [1, 2, 3, 0, 1], **options) for i in range(4)]
            for outcome in one.run(*ops):
                assert outcome.finished is not None
                usage = outcome.finished.usage
                accepted += usage.accepted_tokens
                rejected += usage.drafted_tokens - usage.accepted_tokens
                outputs.append(outcome.tokens)
            for op in ops:
                one.core.free(op.context)
        found.append(outputs)
        assert (accepted > 200, rejected > 200) == (drafts, drafts)
    assert found[0] == found[1]
    counts = np.zeros((4, 4))
    for output in found[1]:
        for before, after in zip((1, *output), output, strict=False):
            counts[before, after] += 1
    expected = counts.sum(1, keepdims=True) * np.asarray(table)
    assert ((counts - expected) ** 2 / expected).sum() < 32.9
