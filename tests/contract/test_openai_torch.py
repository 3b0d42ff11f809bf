"""The openai engine in front of weftline's own server with a real model: text by text, it says what
the model itself says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import Target
from weftline.local import local_server
from weftline_engine.openai.endpoint import EndpointConfig
from weftline_engine.openai.engine import OpenAIConfig, OpenAIEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(smollm2_directory: Path, answers: dict[str, list[str]]) -> AsyncIterator[Target]:
    with local_server(str(smollm2_directory), "--dtype", "float32") as url:
        config = OpenAIConfig(endpoint=EndpointConfig(url=f"{url}/v1"))
        target = Target(OpenAIEngine(config), answers)
        await target.start()
        yield target
        await target.close()


class TestOpenAIOnTorch(EngineContract):
    """SmolLM2 renders, tokenises and answers at the other end."""
