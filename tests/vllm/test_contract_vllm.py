"""The engine contract against a real vLLM.

The vllm engine runs it as a child, another vllm engine connects to that child, and the openai
engine calls it by both of OpenAI's generate APIs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.oracle import prompter
from tests.contract.suite import EngineContract
from tests.contract.target import Target
from tests.vllm.conftest import CONTEXT
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.openai.endpoint_settings import Dialect
from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine
from weftline_server.prompt.render import PromptBefore, RenderedMessage

# The first test waits for vLLM, which loads for a minute or more.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


class TestVLLM(EngineContract):
    """vLLM as a child process."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def target(self, vllm: Target) -> Target:
        return vllm


class TestVLLMWithOurScheduler(EngineContract):
    """vLLM as a child process that runs our scheduler."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def target(self, scheduled: Target) -> Target:
        assert scheduled.can(api.Capability.RETENTION)
        return scheduled


class TestVLLMConnected(EngineContract):
    """The same vLLM, as one that already runs."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def target(
        self, vllm: Target, vllm_socket: str, vllm_config: VLLMConfig
    ) -> AsyncIterator[Target]:
        endpoint = EndpointConfig(url="http://vllm/v1", socket=vllm_socket)
        config = replace(vllm_config, engine_python=None, connect=endpoint, max_model_len=CONTEXT)
        target = Target(VLLMEngine(config), vllm.answers)
        await target.start()
        assert target.can(api.Capability.PRIORITY)  # the engine asked vLLM, which takes one
        assert not target.can(api.Capability.USAGE)  # the engine does not know how vLLM was started
        yield target
        await target.close()


class TestOpenAIOnVLLM(EngineContract):
    """The openai engine sends messages, or text that the test rendered."""

    @pytest_asyncio.fixture(loop_scope="session", params=["chat", "completions"])
    async def target(
        self,
        request: pytest.FixtureRequest,
        vllm: Target,
        vllm_socket: str,
        smollm2_directory: Path,
    ) -> AsyncIterator[Target]:
        config = OpenAIConfig(
            endpoint=EndpointConfig(url="http://vllm/v1", socket=vllm_socket),
            model="smollm2",
            dialect=Dialect(request.param),
        )
        render = prompter(smollm2_directory).text
        target = Target(
            OpenAIEngine(config),
            vllm.answers,
            chat=request.param == "chat",
            render=lambda messages: render(
                PromptBefore("", tuple(RenderedMessage(*one) for one in messages))
            ),
        )
        await target.start()
        yield target
        await target.close()
