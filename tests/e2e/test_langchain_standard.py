"""LangChain's own suite for chat models on the real model, whose answers are held to schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.language_models import BaseChatModel

from integrations.langchain.tests.integration_tests import test_standard as suite
from weftline.local import local_server


@pytest.fixture(scope="module")
def fast_url(smollm2_directory: Path) -> Iterator[str]:
    """A server in bfloat16, which takes half the time of float32."""
    with local_server(str(smollm2_directory)) as url:
        yield url


class TestSmolLM2(suite.TestStandard):
    """What fails is what only a better model can do; in bfloat16 it depends on the processor."""

    @pytest.fixture(autouse=True)
    def _served(self, fast_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFTLINE_BASE_URL", fast_url)

    @pytest.mark.xfail(
        reason="model quality: asked in words alone for two keys, it nests them", strict=False
    )
    def test_json_mode(self, model: BaseChatModel) -> None:
        super().test_json_mode(model)

    @pytest.mark.parametrize("model", [{}, {"output_version": "v1"}], indirect=True)
    @pytest.mark.xfail(
        reason="model quality: free to call a tool or not, it talks about the weather", strict=False
    )
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)
