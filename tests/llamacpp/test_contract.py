"""The engine contract against a real llama-server: as a child, as one that runs, and on text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from tests.contract.suite import MARK, MARK_ID, EngineContract
from tests.contract.target import Target
from weftline_engine import api
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")


def connected(llama: Target, config: LlamaServerConfig) -> LlamaServerConfig:
    """The settings of an engine that uses the running child."""
    engine = llama.engine
    assert isinstance(engine, LlamaEngine) and engine.child is not None
    return replace(config, llama_server=None, model=None, connect=engine.child.endpoint)


class TestLlama(EngineContract):
    """llama-server as a child process."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def target(self, llama: Target) -> Target:
        assert llama.can(api.Capability.REPORTS) and llama.can(api.Capability.RETENTION)
        return llama


class TestLlamaConnected(EngineContract):
    """The same llama-server, as one that already runs."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def target(self, llama: Target, llama_config: LlamaServerConfig) -> AsyncIterator[Target]:
        target = Target(LlamaEngine(connected(llama, llama_config)), llama.answers)
        await target.start()
        assert target.can(api.Capability.CONTEXTS) and not target.can(api.Capability.REPORTS)
        yield target
        await target.close()


class TestLlamaOnText(EngineContract):
    """Nobody here knows the tokenizer, so llama-server tokenises what its template renders."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def target(self, llama: Target, llama_config: LlamaServerConfig) -> AsyncIterator[Target]:
        config = replace(connected(llama, llama_config), words=None)
        target = Target(LlamaEngine(config), llama.answers)
        await target.start()
        assert target.description.tokenizer is None
        assert target.description.chat_template is not None
        yield target
        await target.close()

    async def test_marks_are_in_the_text(self, target: Target) -> None:
        """Nobody here could find them by their ids."""
        op = target.op(
            target.questions[0], max_tokens=2, logit_bias=((MARK_ID, 100.0),), marks=(MARK,)
        )
        [heard] = await target.run(op)
        assert heard.text == MARK * 2
        [heard] = await target.run(
            target.op(target.questions[0], max_tokens=2, logit_bias=((MARK_ID, 100.0),))
        )
        assert heard.text == ""
