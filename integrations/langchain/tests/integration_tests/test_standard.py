"""LangChain's own integration tests for chat models, against the server of WEFTLINE_BASE_URL."""

from __future__ import annotations

import os
from typing import Any

import httpx2
import pytest
from langchain_tests.integration_tests import ChatModelIntegrationTests

from langchain_weftline import ChatWeftline


class TestStandard(ChatModelIntegrationTests):
    """Greedy, and short. What fails depends on the model that is served; a good one passes all."""

    @pytest.fixture(autouse=True)
    def _served(self) -> None:
        if not os.environ.get("WEFTLINE_BASE_URL"):
            pytest.skip("set WEFTLINE_BASE_URL to the address of a weftline server with a model")

    @property
    def chat_model_class(self) -> type[ChatWeftline]:
        return ChatWeftline

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # A small model that is greedy repeats itself inside a string, and no schema ends that.
        return {"temperature": 0, "frequency_penalty": 1.0, "max_tokens": 128}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        models = httpx2.get(f"{ChatWeftline().server_url}/v1/models").json()["data"]
        return str(models[0]["id"])
