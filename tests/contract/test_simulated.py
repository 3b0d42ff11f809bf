"""The simulated engine under the contract: the embedded engine's bookkeeping without a model."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import PREAMBLE, Target
from weftline_engine.api import Description
from weftline_engine.pretend.simulation import (
    CHAT_TEMPLATE,
    SimulatedConfig,
    SimulatedEngine,
    StepCost,
    words_tokenizer,
)
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = SimulatedConfig(cost=StepCost(step_s=0.001, fill_s=0.0, sequence_s=0.0), kv_tokens=16_384)
QUESTIONS = tuple(" ".join(f"w{n + i}" for i in range(25)) for n in (100, 200, 300, 400))


def answer(prompt: list[int], count: int) -> list[str]:
    """The words of the engine's own rule after these words."""
    tokens = list(prompt)
    for _ in range(count):
        said = array("q", tokens[-8:]).tobytes()
        tokens.append(zlib.crc32(said, len(tokens)) % CONFIG.words)
    return [f"w{token} " for token in tokens[len(prompt) :]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    folder: Path = tmp_path_factory.mktemp("words")
    tokenizer = str(words_tokenizer(folder, CONFIG.words))
    prompter = Prompter(
        Description(model="words", tokenizer=tokenizer, chat_template=CHAT_TEMPLATE)
    )
    answers = {}
    for question in QUESTIONS:
        chat = PromptBefore(
            "", (RenderedMessage("system", PREAMBLE), RenderedMessage("user", question))
        )
        answers[question] = answer(list(prompter.payload(chat).tokens or ()), 300)
    target = Target(SimulatedEngine(CONFIG), answers)
    await target.start()
    yield target
    await target.close()


class TestSimulated(EngineContract):
    """The simulated steps take milliseconds."""
