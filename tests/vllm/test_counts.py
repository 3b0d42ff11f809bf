"""`--engine openai` in front of a real vLLM: cached tokens are those that vLLM has found."""

from __future__ import annotations

import pytest

from tests.contract.target import Target
from tests.endpoint_counts import check_counts, metric
from tests.null.asgi import served
from tests.vllm.conftest import BLOCK
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine
from weftline_engine.remote.vllm.engine import VLLMEngine

# The first test waits for vLLM, which loads for a minute or more.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


async def test_cached_tokens_are_those_that_vllm_found(vllm: Target, vllm_socket: str) -> None:
    endpoint = EndpointConfig(url="http://vllm/v1", socket=vllm_socket)
    config = OpenAIConfig(endpoint=endpoint, model="smollm2", extras=True)
    engine = vllm.engine
    assert isinstance(engine, VLLMEngine)

    async def computed() -> int:
        source = {"source": "local_compute"}
        return metric(await engine.metrics(), "vllm:prompt_tokens_by_source_total", **source)

    async with served("far", lambda: OpenAIEngine(config)) as server:
        found = await check_counts(server, computed, stop_id=30)
    assert found["chat"] == [0]
    for kind in ("the same", "streamed", "stopped", "stop ids", "siblings", "text, streamed"):
        assert all(cached > 8 * BLOCK for cached in found[kind]), found
