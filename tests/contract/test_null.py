"""The null engine under the contract: the oracle for events and errors."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import Target
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = ("What is a loom?", "What is a weft?", "What is a warp?", "Who weaves?")


def script() -> dict[str, list[str]]:
    """A reply of 300 words for each question, word by word."""
    replies = {
        q: " ".join(f"{'xyz'[n % 3]}{i}" for i in range(300)) for n, q in enumerate(QUESTIONS)
    }
    return {question: re.findall(r"\s*\S+", reply) for question, reply in replies.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Target]:
    answers = script()
    rules = tuple((question, "".join(pieces)) for question, pieces in answers.items())
    pace = LatencyProfile(step_s=0.001)
    config = NullConfig(mode=NullMode.SCRIPT, script=rules, latency=pace, context_limit=4096)
    target = Target(NullEngine(config), answers)
    await target.start()
    yield target
    await target.close()


class TestNull(EngineContract):
    """Its tokens are words."""
