"""The tokens are the same for every batch, chunk size, sharing and pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from weftline_engine.api import Finished, Hints

Make = Callable[..., Any]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_greedy_tokens_equal_transformers(
    dtype: torch.dtype, make_bench: Make, generate: Make, tokens_of: Make, tiny_directory: Path
) -> None:
    """Ten prompts of 1 to 150 tokens run together and one by one."""
    model = AutoModelForCausalLM.from_pretrained(tiny_directory, dtype=dtype)
    prompts = [tokens_of(i, count) for i, count in enumerate((1, 2, 15, 16, 17, 33, 64, 90, 150))]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected.append(out[0, len(prompt) :].tolist())
    ops = [generate(f"op{i}", prompt) for i, prompt in enumerate(prompts)]
    together = make_bench(dtype=dtype).run(*ops)
    assert [outcome.tokens for outcome in together] == expected
    alone = [make_bench(dtype=dtype).run(op)[0].tokens for op in ops]
    assert alone == expected


@pytest.fixture
def prompts(tokens_of: Make) -> list[tuple[int, ...]]:
    """Three families of prompts whose common prefixes end inside a block."""
    return [
        (*tokens_of(family, common), *tokens_of(100 + 10 * family + i, 5 + 7 * i))
        for family, common in ((1, 37), (2, 70), (3, 9))
        for i in range(3)
    ]


@pytest.fixture
def expected(prompts: list[tuple[int, ...]], make_bench: Make, generate: Make) -> list[list[int]]:
    """The outputs of each prompt alone, in a fresh engine and in one chunk."""
    return [make_bench().run(generate("op", prompt))[0].tokens for prompt in prompts]


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        pytest.param({}, True, id="batched"),
        pytest.param({"step_tokens": 13, "max_running": 12}, True, id="chunked"),
        pytest.param({"blocks": 12}, None, id="preempted"),
        pytest.param({"block_size": 4, "blocks": 1024}, True, id="small blocks"),
        pytest.param({"max_running": 1}, True, id="one at a time"),
    ],
)
def test_outputs_do_not_depend_on_the_schedule(
    options: dict[str, int],
    cached: bool | None,
    make_bench: Make,
    generate: Make,
    prompts: list[tuple[int, ...]],
    expected: list[list[int]],
) -> None:
    """Batched, in chunks, preempted or one by one: the tokens are those of the model alone. Prompts
    with a common prefix find at least 32 of its tokens in the cache."""
    bench = make_bench(**options)
    outcomes = bench.run(*[generate(f"op{i}", prompt) for i, prompt in enumerate(prompts)])
    assert [outcome.tokens for outcome in outcomes] == expected
    found = [outcome.finished.usage.cached_tokens for outcome in outcomes]
    if cached:
        assert found[0] == found[3] == 0
        assert all(count >= 32 for count in (found[1], found[2], found[4], found[5]))


def test_a_forked_context_equals_the_whole_prompt(
    make_bench: Make,
    generate: Make,
    fill: Make,
    prompts: list[tuple[int, ...]],
    expected: list[list[int]],
) -> None:
    """A prefix of 37 tokens, two blocks and a part, is filled once and continued three times."""
    bench = make_bench()
    children = [generate(f"op{i}", prompts[i][37:], parent="prefix.context") for i in range(3)]
    outcomes = bench.run(fill("prefix", prompts[0][:37]), *children)
    assert [outcome.tokens for outcome in outcomes[1:]] == expected[:3]
    usages = [outcome.finished.usage for outcome in outcomes[1:]]
    assert [usage.cached_tokens for usage in usages] == [37, 37, 37]
    assert [usage.prompt_tokens for usage in usages] == [len(prompts[i]) for i in range(3)]


def test_a_chain_of_contexts_equals_one_prompt(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """A generate continues a generate. The prompt is the answer and a question. All of it comes
    from the cache but the answer's last token, which was never computed.
    """
    bench = make_bench()
    prompt, question = tokens_of(7, 21), tokens_of(8, 6)
    first = bench.run(generate("first", prompt))[0]
    second = bench.run(generate("second", question, parent="first.context"))[0]
    whole = make_bench().run(generate("op", (*prompt, *first.tokens, *question)))[0]
    assert second.tokens == whole.tokens
    assert second.finished.usage.cached_tokens == 21 + 11
    assert second.finished.usage.prompt_tokens == 21 + 12 + 6


def test_a_streamed_prompt_equals_a_whole_one(
    make_bench: Make, generate: Make, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    """The prompt comes in three parts, one of them twice. Whole blocks are computed at once."""
    bench = make_bench()
    prompt = prompts[0]
    bench.submit([generate("op", prompt[:5], open=True)])
    bench.step()
    assert bench.core.book.scheduler.running[0].computed == 0
    bench.core.feed("op", 5, prompt[5:20], False)
    bench.core.feed("op", 5, prompt[5:20], False)
    bench.step()
    assert bench.core.book.scheduler.running[0].computed == 16
    assert not bench.core.busy
    bench.core.feed("op", 20, prompt[20:], True)
    assert bench.run() == []
    assert bench.outcomes["op"].tokens == expected[0]


def test_a_streamed_prompt_that_begins_within_a_context_equals_a_whole_one(
    make_bench: Make, generate: Make, fill: Make, prompts: list[tuple[int, ...]]
) -> None:
    """The first part ends inside a block of the context. The step that copies this block has
    nothing to compute.
    """
    prompt = prompts[0][:37]
    expected = make_bench().run(generate("op", prompt))[0].tokens
    bench = make_bench()
    bench.run(fill("context", prompt[:20]))
    bench.submit([generate("op", prompt[:20], open=True)])
    bench.step()
    bench.core.feed("op", 20, prompt[20:], True)
    bench.run()
    assert bench.outcomes["op"].tokens == expected


def test_thirty_two_requests_finish_on_eight_blocks(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """Each needs 3 of the 8 blocks, so two fit, and the second is often preempted."""
    prompts = [tokens_of(i, 20 + i % 10) for i in range(32)]
    outcomes = make_bench(blocks=8).run(
        *[generate(f"op{i}", prompt, max_tokens=16) for i, prompt in enumerate(prompts)]
    )
    assert all(outcome.finished for outcome in outcomes)
    for i in (0, 13, 31):
        alone = make_bench().run(generate("op", prompts[i], max_tokens=16))[0]
        assert outcomes[i].tokens == alone.tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("retention", "cached"), [("keep", 51), ("evictable", 0), ("drop", 0), ("swap", 51)]
)
def test_a_retained_context_is_continued_exactly(
    retention: str,
    cached: int,
    dtype: torch.dtype,
    make_bench: Make,
    generate: Make,
    tokens_of: Make,
) -> None:
    """Other work on a small pool evicts its cache unless it is kept. The continuation is the same.
    From host memory nothing is computed again.
    """
    prompt, more = tokens_of(1, 40), tokens_of(2, 5)
    kept = make_bench(blocks=8, dtype=dtype)
    kept.run(generate("first", prompt))
    expected = kept.run(generate("next", more, parent="first.context"))[0]
    bench = make_bench(blocks=8, dtype=dtype)
    bench.run(generate("first", prompt))
    bench.core.retain("first.context", retention)
    bench.run(generate("other", tokens_of(3, 112 if retention != "keep" else 40)))
    bench.core.free("other.context")
    again = bench.run(generate("next", more, parent="first.context"))[0]
    assert again.tokens == expected.tokens
    assert expected.finished.usage.cached_tokens == 51
    assert again.finished.usage.cached_tokens == cached


def test_a_swapped_context_is_restored_bit_for_bit(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """Its blocks are wiped while it is in host memory, and other work writes to them."""
    bench = make_bench(blocks=8)
    bench.run(generate("first", tokens_of(1, 40)))
    core = bench.core
    context = core.book.contexts.named["first.context"]

    def contents() -> Any:
        return core.cache[:, :, :, [node.block for node in context.held]].copy()

    before = contents()
    core.retain("first.context", "swap")
    assert bench.step()[-1].residency == "host"
    assert (context.held, core.book.scheduler.tree.available) == ([], 8)
    bench.run(generate("other", tokens_of(3, 112)))
    core.free("other.context")
    core.cache.fill(0)
    core.retain("first.context", "keep")
    moved = bench.step()[-1]
    assert (moved.context, moved.residency, moved.tokens) == ("first.context", "resident", 51)
    assert np.array_equal(contents(), before)
    assert core.book.scheduler.tree.available == 8 - len(context.held)


def test_new_hints_change_the_order_and_no_token(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """The engine has one place. An update says that the second op has less work left, so it ends
    first.
    """
    ops = [generate(name, tokens_of(i, 20)) for i, name in enumerate("ab")]
    expected = [make_bench().run(op)[0].tokens for op in ops]
    bench = make_bench(max_running=1)
    bench.submit(ops)
    bench.core.update("a", Hints(application="a", turn=9.0))
    bench.core.update("b", Hints(application="b", turn=3.0))
    bench.core.update("nobody", Hints())
    ended = []
    while bench.core.busy:
        ended += [event.op for event in bench.step() if isinstance(event, Finished)]
    assert ended == ["b", "a"]
    assert [bench.outcomes[name].tokens for name in "ab"] == expected


def test_attention_without_the_tree_gives_the_same_tokens(
    make_bench: Make,
    generate: Make,
    tokens_of: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six prompts have ten blocks in common, read once a step or by each sequence for itself."""
    common = tokens_of(1, 160)
    ops = [generate(f"op{i}", (*common, *tokens_of(10 + i, 5))) for i in range(6)]
    steps: dict[bool, list[bool]] = {}
    found = {}
    for shared in (True, False):
        bench = make_bench(tree_attention=shared)
        decoder, merged = bench.core.worker.decoder, steps.setdefault(shared, [])
        forward = type(decoder).forward

        def watched(
            self: Any, step: Any, cache: Any, forward: Any = forward, merged: Any = merged
        ) -> Any:
            merged.append(step.work.merged)
            return forward(self, step, cache)

        with monkeypatch.context() as patched:
            patched.setattr(type(decoder), "forward", watched)
            found[shared] = [outcome.tokens for outcome in bench.run(*ops)]
    assert found[True] == found[False]
    assert any(steps[True])
    assert not any(steps[False])
