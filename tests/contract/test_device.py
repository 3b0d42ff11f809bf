"""The engine of a device under the contract.

The device is pretended (tests/pretend.py): our kernels have stand-ins in torch.
The model is random, with SmolLM2's tokenizer, and computes in float64, so that no order of sums
changes a token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.contract.oracle import greedy_answers
from tests.contract.suite import EngineContract
from tests.contract.target import Target
from tests.pretended_engine import PretendedConfig
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.transport.process import ProcessEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

# What is not the model's in SmolLM2's directory.
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def random_model(smollm2_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a Llama of two layers, whose answers depend on the whole prompt."""
    directory = tmp_path_factory.mktemp("random")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    for name in TEXTS:
        (directory / name).symlink_to(smollm2_directory / name)
    return directory


@pytest.fixture(scope="module")
def random_answers(random_model: Path) -> dict[str, list[str]]:
    return greedy_answers(random_model, torch.float64)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(random_model: Path, random_answers: dict[str, list[str]]) -> AsyncIterator[Target]:
    embedded = EmbeddedConfig(
        model=random_model, dtype="float64", kv_tokens=8192, max_running=12, step_tokens=256
    )
    target = Target(ProcessEngine(PretendedConfig(embedded)), random_answers)
    await target.start()
    yield target
    await target.close()


class TestDevice(EngineContract):
    """The engine runs in its child process, which refuses what a GPU would refuse or wait for."""

    async def test_it_announces_what_copies_and_steps_cost(self, target: Target) -> None:
        """A device measures both when it starts, so preserve, swap and discard are chosen there."""
        costs = target.description.kv_costs
        assert costs is not None and costs.chunk == 256
        assert min(costs.step_s, costs.copy_s) > 0
        assert [tokens for tokens, _ in target.description.step_profile] == [512, 2048]
