"""A model with a state beside its keys and values, in a real vLLM: an LFM2 of random weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, Lfm2Config

from tests.contract.target import Target
from tests.vllm.conftest import BLOCK
from weftline_engine import api
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine
from weftline_engine.remote.vllm.vllm_settings import SchedulerChoice

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARED = tuple(range(1000, 1400))  # tokens that calls have in common
WHOLE = len(SHARED) // BLOCK * BLOCK


@pytest.fixture(scope="module")
def convolutions(smollm2_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lfm2")
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=49_152,
        hidden_size=128,
        conv_dim=128,  # this and the next are in published files, and vLLM reads them
        block_dim=128,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        layer_types=["conv", "full_attention"],
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(smollm2_directory / name, folder)
    return folder


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["vllm", "weftline"], ids="{} schedules".format
)
async def hybrid(
    request: pytest.FixtureRequest, vllm_config: VLLMConfig, environment: None, convolutions: Path
) -> AsyncIterator[Target]:
    """With vLLM's own scheduler the state is kept by fills, and with ours in the prompts."""
    config = replace(vllm_config, model=convolutions, vllm_scheduler=SchedulerChoice(request.param))
    target = Target(VLLMEngine(config), {}, grain=BLOCK)
    async with asyncio.timeout(600):
        await target.start()
    yield target
    await target.close()


def op(name: str, tokens: tuple[int, ...], **options: Any) -> api.Op:
    params = api.SamplingParams(max_tokens=4, temperature=0.0)
    generate = api.Kind.GENERATE
    return api.Op(id=name, kind=generate, context=name, tokens=tokens, sampling=params, **options)


def cached(heard: list[Any]) -> list[int]:
    return [one.finished.usage.cached_tokens for one in heard if one.finished is not None]


async def test_siblings_find_the_state_where_they_part(hybrid: Target) -> None:
    """One of them has computed their common beginning. Each other computes its own part behind the
    last whole block of it."""
    siblings = [op(f"s{at}", (*SHARED, *range(at, at + 40))) for at in range(100, 104)]
    assert sorted(cached(await hybrid.run(*siblings))) == [0, WHOLE, WHOLE, WHOLE]
    [again] = cached(await hybrid.run(op("again", (*SHARED, *range(500, 540)))))
    assert again == WHOLE


async def test_a_next_turn_continues_the_state_of_the_last_prompt(hybrid: Target) -> None:
    """Nothing is filled for it."""
    first = tuple(range(2000, 2320))
    await hybrid.run(op("turn", (*first, 7)))
    [found] = cached(await hybrid.run(op("next", (*first, 7, *range(60)))))
    assert found == len(first)
