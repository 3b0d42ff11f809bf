"""`--engine openai` in front of a real llama-server: cached tokens are those that it has found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.target import Target
from tests.endpoint_counts import check_counts, metric
from tests.null.asgi import served
from weftline_engine.remote.llamacpp.engine import LlamaEngine
from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_cached_tokens_are_those_that_llama_server_found(llama: Target) -> None:
    engine = llama.engine
    assert isinstance(engine, LlamaEngine) and engine.child is not None
    own = engine.child.endpoint
    config = OpenAIConfig(endpoint=replace(own, url=f"{own.url}/v1"), extras=True)

    async def computed() -> int:
        return metric(await engine.metrics(), "llamacpp:prompt_tokens_total")

    async with served("far", lambda: OpenAIEngine(config)) as server:
        found = await check_counts(server, computed, stop_id=30)
    for kind in ("the same", "streamed", "stopped", "stop ids", "text, streamed"):
        assert all(cached > 256 for cached in found[kind]), found
