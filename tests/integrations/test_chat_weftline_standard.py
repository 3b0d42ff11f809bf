"""LangChain's own test suites for chat models, over ChatWeftline."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from syrupy.assertion import SnapshotAssertion

from langchain_weftline import ChatWeftline


class TestUnit(ChatModelUnitTests):
    """Construction, parameters, tools and serialisation; nothing is sent."""

    @property
    def chat_model_class(self) -> type[ChatWeftline]:
        return ChatWeftline

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return (
            {"WEFTLINE_API_KEY": "a key", "WEFTLINE_BASE_URL": "http://there:1"},
            {},
            {"openai_api_key": "a key", "openai_api_base": "http://there:1/v1"},
        )

    @pytest.mark.xfail(
        reason="langchain-core's load() revives classes of other packages only when they are "
        "listed in allowed_objects; test_chat_weftline.py lists ours",
        strict=False,  # older cores load by namespace
    )
    def test_serdes(self, model: BaseChatModel, snapshot: SnapshotAssertion) -> None:
        super().test_serdes(model, snapshot)


class TestIntegration(ChatModelIntegrationTests):
    """What a served model must do; the null engine calls no tools and writes no JSON."""

    @pytest.fixture(autouse=True)
    def _served(self, echo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFTLINE_BASE_URL", echo_url)

    @property
    def chat_model_class(self) -> type[ChatWeftline]:
        return ChatWeftline

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def model_override_value(self) -> str:
        return "null"
