"""The openai engine under the contract, in front of weftline's own server on the null engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import Target
from tests.contract.test_null import script
from weftline.local import local_server
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.openai.endpoint_settings import Dialect
from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["chat", "completions"])
async def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Target]:
    answers = script()
    rules = [{"when": question, "reply": "".join(all)} for question, all in answers.items()]
    path = tmp_path_factory.mktemp("null") / "script.json"
    path.write_text(json.dumps(rules))
    null = ("--engine", "null", "--null-mode", "script", "--null-script", str(path))
    with local_server(*null, "--null-step-s", "0.002") as url:
        config = OpenAIConfig(
            endpoint=EndpointConfig(url=f"{url}/v1"), dialect=Dialect(request.param)
        )
        target = Target(
            OpenAIEngine(config),
            answers,
            chat=request.param == "chat",
            names_stop=False,
            render=lambda messages: "\n".join(text for _, text in messages),
        )
        await target.start()
        yield target
        await target.close()


class TestOpenAIOnNull(EngineContract):
    """Each test runs with messages and with text."""
