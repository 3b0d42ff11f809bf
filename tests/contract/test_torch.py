"""The embedded engine under the contract, in float32."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import Target
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.transport.process import ProcessEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(smollm2_directory: Path, answers: dict[str, list[str]]) -> AsyncIterator[Target]:
    config = EmbeddedConfig(model=smollm2_directory, dtype="float32", kv_tokens=16_384)
    target = Target(ProcessEngine(config), answers)
    await target.start()
    yield target
    await target.close()


class TestTorch(EngineContract):
    """The engine runs in its child process."""
