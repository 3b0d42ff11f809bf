"""The openai engine in front of weftline's own server gives the texts of a real model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import Target
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(model_url: str, answers: dict[str, list[str]]) -> AsyncIterator[Target]:
    config = OpenAIConfig(endpoint=EndpointConfig(url=f"{model_url}/v1"))
    target = Target(OpenAIEngine(config), answers, names_stop=False)
    await target.start()
    yield target
    await target.close()


class TestOpenAIOnTorch(EngineContract):
    """SmolLM2 renders, tokenises and answers at the other end."""
