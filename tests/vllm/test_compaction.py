"""A conversation is replaced by its summary, and vLLM computes nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.compaction import check_langchain, check_llamaindex
from tests.served_app import listening
from tests.vllm.conftest import BLOCK, CONTEXT
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig

# The first test waits for vLLM, which loads for a minute or more.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(vllm_socket: str, vllm_config: VLLMConfig) -> AsyncIterator[str]:
    endpoint = EndpointConfig(url="http://vllm/v1", socket=vllm_socket)
    config = replace(vllm_config, engine_python=None, connect=endpoint, max_model_len=CONTEXT)
    app = create_app(ServerConfig(), {"vllm": lambda: VLLMEngine(config)})
    with listening(app) as url:
        yield url


@pytest.mark.parametrize("reads", [True, False])
async def test_langchain(reads: bool, url: str, smollm2_directory: Path) -> None:
    await asyncio.to_thread(check_langchain, url, smollm2_directory, BLOCK, reads=reads)


async def test_llamaindex(url: str, smollm2_directory: Path) -> None:
    await check_llamaindex(url, smollm2_directory, BLOCK)
