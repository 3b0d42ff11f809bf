"""Models whose state cannot be cut anywhere, on a real llama-server: what it computes again.

The models have random weights: a short convolution beside attention (LFM2), and attention in
windows (Gemma 3). What their llama-server computes is read from its own metrics.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.contract.target import Target
from tests.llamacpp.random_ggufs import FAMILIES, gguf_of
from tests.variants import load_model, prefill
from weftline_engine import api
from weftline_engine.own.models import resolve
from weftline_engine.own.models.gguf_header import GgufHeader
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine
from weftline_engine.remote.llamacpp.state_cut import StateCut, cut_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARED = tuple(range(1000, 1400))  # tokens that calls have in common


@pytest.fixture(scope="module")
def convolutions(smollm2_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_of(FAMILIES["LFM2"](), smollm2_directory, tmp_path_factory.mktemp("lfm2"))


@pytest.fixture(scope="module")
def windows(smollm2_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_of(FAMILIES["Gemma 3"](), smollm2_directory, tmp_path_factory.mktemp("gemma3"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hybrid(llama_config: LlamaServerConfig, convolutions: Path) -> AsyncIterator[Target]:
    """Two slots of a model with convolutions."""
    cut = cut_of(GgufHeader(convolutions).values)
    assert cut is StateCut.KEPT
    config = replace(llama_config, model=convolutions, slots=2, cut=cut)
    target = Target(LlamaEngine(config), {})
    await target.start()
    yield target
    await target.close()


def op(name: str, tokens: tuple[int, ...], **sampling: Any) -> api.Op:
    params = api.SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **sampling})
    generate = api.Kind.GENERATE
    return api.Op(id=name, kind=generate, context=name, tokens=tokens, sampling=params)


async def computed(target: Target) -> int:
    """The prompt tokens that llama-server has computed so far."""
    assert isinstance(target.engine, LlamaEngine)
    text = (await target.engine.metrics()).decode()
    found = re.search(r"^llamacpp:prompt_tokens_total (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


async def computed_by_second_turns(target: Target) -> int:
    """The prompt tokens that three conversations compute in their second turns, on two slots. No
    second turn begins with the answer of the first, as where a template leaves thoughts out."""
    first = {name: (begin, *range(500, 700)) for begin, name in enumerate("abc", 100)}
    for name, tokens in first.items():
        await target.run(op(name, tokens))
    before = await computed(target)
    for name, tokens in first.items():
        [heard] = await target.run(op(f"{name}2", (*tokens, *range(50, 80))))
        assert heard.finished is not None
        assert heard.finished.usage.cached_tokens >= len(tokens) - 5
    return await computed(target) - before


async def test_conversations_beyond_the_slots_keep_their_prompts(hybrid: Target) -> None:
    """A second turn computes its new tokens, and the few that follow llama-server's checkpoint."""
    assert await computed_by_second_turns(hybrid) <= 3 * (5 + 30) + 3


async def test_siblings_compute_their_common_beginning_once(hybrid: Target) -> None:
    """Their slots continue a file that ends exactly there."""
    before = await computed(hybrid)
    siblings = [op(f"s{at}", (*SHARED, *range(at, at + 40))) for at in range(100, 104)]
    heard = await hybrid.run(*siblings)
    cached = [one.finished.usage.cached_tokens for one in heard if one.finished is not None]
    assert sorted(cached) == [0] + [len(SHARED)] * 3  # one of them computed it
    # And one token for each slot that was written before.
    assert await computed(hybrid) - before <= len(SHARED) + 4 * 40 + 4


async def test_the_states_at_the_borders_of_a_first_call_are_kept(
    hybrid: Target, smollm2_directory: Path
) -> None:
    """llama-server keeps the state behind the system prompt in a file, and behind the documents in
    the slot. The second call finds the latter. The third has other documents, and finds the former.
    """
    tokenizer = Tokenizer.from_file(str(smollm2_directory / "tokenizer.json"))

    def said(seed: str, words: int) -> list[int]:
        """A text whose words are tokens."""
        letters = random.Random(seed).choices(ascii_lowercase, k=words)
        return tokenizer.encode(f" {' '.join(letters)}", add_special_tokens=False).ids

    system, before = said("system", 300), await computed(hybrid)
    borders = len(system), len(system) + 200
    for number, documents in enumerate(("one", "one", "two")):
        prompt = (*system, *said(documents, 200), *said(f"question {number}", 40))
        asked = replace(op(f"asked{number}", prompt), guesses=api.Guesses(borders=borders))
        [heard] = await hybrid.run(asked)
        assert heard.finished is not None
        assert heard.finished.usage.cached_tokens == (0, borders[1] - 1, borders[0])[number]
    # And one token for each slot that was written before.
    assert await computed(hybrid) - before <= len(system) + 2 * 200 + 3 * 41 + 4


@pytest.mark.parametrize("stops", [(), (49_000,)])
async def test_what_is_reported_as_cached_was_not_computed(
    hybrid: Target, stops: tuple[int, ...]
) -> None:
    """Also where the answer is ended by us, at a token that llama-server does not know."""
    begin = tuple(range(3000 + len(stops), 3300))
    await hybrid.run(op(f"one{len(stops)}", (*begin, 7, 8, 9)))
    before = await computed(hybrid)
    [heard] = await hybrid.run(
        op(f"two{len(stops)}", (*begin[:250], 5), stop_token_ids=stops, block=("<t>", "</t>"))
    )
    assert heard.finished is not None
    # The state is kept nowhere before token 250. It is filled up to there, for the next call.
    assert heard.finished.usage.cached_tokens == 0
    assert heard.finished.usage.lost_tokens == 250
    assert await computed(hybrid) - before in (251, 252)  # a slot that is written computes a token
    [heard] = await hybrid.run(op(f"three{len(stops)}", (*begin[:250], 6)))
    assert heard.finished is not None
    assert (heard.finished.usage.cached_tokens, heard.finished.usage.lost_tokens) == (250, 0)


async def test_conversations_with_windows_keep_their_prompts_without_files(
    llama_config: LlamaServerConfig, windows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, and what would help. What slots lose goes to llama-server's own cache."""
    cut = cut_of(GgufHeader(windows).values)
    assert cut is StateCut.WINDOWS
    config = replace(llama_config, model=windows, slots=2, cut=cut)
    target = Target(LlamaEngine(config), {})
    with caplog.at_level("INFO", "weftline.llamacpp"):
        await target.start()
    try:
        assert "--swa-full" in caplog.text
        assert await computed_by_second_turns(target) <= 3 * (5 + 30)
    finally:
        await target.close()


async def test_whole_windows_are_continued_from_files(
    llama_config: LlamaServerConfig, windows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With --swa-full a common beginning of siblings is computed once, as with full attention."""
    config = replace(
        llama_config,
        model=windows,
        slots=2,
        llama_arguments=("--swa-full",),
        cut=StateCut.IN_SLOTS,
    )
    target = Target(LlamaEngine(config), {})
    await target.start()
    try:
        siblings = [op(f"s{at}", (*SHARED, *range(at, at + 40))) for at in range(100, 104)]
        heard = await target.run(*siblings)
        cached = [one.finished.usage.cached_tokens for one in heard if one.finished is not None]
        assert sorted(cached) == [0] + [len(SHARED)] * 3
        assert await computed(target) <= len(SHARED) + 4 * 40 + 2
        # A file holds only the last window, so that of a slot which goes on behind the common
        # beginning is of no use to siblings that come later. They fill the beginning once more.
        before = await computed(target)
        late = [op(f"l{at}", (*SHARED[::-1], *range(at, at + 200))) for at in range(200, 204)]
        await target.run(late[0])
        await target.run(*late[1:])
        assert await computed(target) - before <= 2 * len(SHARED) + 4 * 200 + 4
        assert "computed a prompt again" not in caplog.text  # which ends all copies
    finally:
        await target.close()


async def test_our_own_engine_computes_the_file_of_llama_cpps_converter(
    convolutions: Path, tmp_path: Path
) -> None:
    """It reads names, sizes and layers of convolutions as llama.cpp's converter writes them."""
    reference = AutoModelForCausalLM.from_pretrained(convolutions.parent, dtype=torch.float32)
    tokens = torch.randint(0, 49_000, (75,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    decoder = load_model(resolve(str(convolutions), home=tmp_path), torch.float32)
    # Matrices are rounded to float16 in the file, and from there to bfloat16.
    error = (prefill(decoder, tokens, [75]) - expected).abs()
    assert float(error.max()) < 0.02 < 0.1 < float(expected.std())
