"""LangChain's own integration tests for chat models, over ChatWeftline and a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_tests.integration_tests import ChatModelIntegrationTests

from langchain_weftline import ChatWeftline
from tests.integrations.conftest import StartServer


def tool(name: str, **arguments: Any) -> str:
    """A call of a tool, as a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


JOKE = {"setup": "Why was the cat on the computer?", "punchline": "To watch the mouse."}
# The answers of a good model, by text in the prompt. The first rule that matches counts.
SCRIPT = [
    ("What is 3 + 4", tool("my_adder_tool", a=3, b=4)),
    ("<tool_response>", "So it is."),
    ("What is the value of magic_function(3)?", tool("magic_function", input=3)),
    ("What is the value of magic_function_no_args()?", tool("magic_function_no_args")),
    ("generate a Pirate greeting", tool("greeting_generator", answer_style="pirate")),
    ("weather in San Francisco", tool("get_weather", location="San Francisco, CA")),
    ("你好啊集团", tool("unicode_customer", customer_name="你好啊集团", description="Tech")),
    (
        "こんにちは株式会社",
        tool("unicode_customer", customer_name="こんにちは株式会社", description="x"),
    ),
    ('"name": "magic_function"', tool("magic_function", input=1)),
    *((f'"name": "{name}"', tool(name, **JOKE)) for name in ("Joke", "JokeDict", "joke")),
    ("joke about cats", json.dumps(JOKE)),
    ("", "Well, one two three."),
]


class Standard(ChatModelIntegrationTests):
    """The settings that ChatWeftline declares to the suite."""

    @property
    def chat_model_class(self) -> type[ChatWeftline]:
        return ChatWeftline

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestScripted(Standard):
    """A script on the null engine stands for a model that follows instructions. No test fails."""

    @pytest.fixture(autouse=True)
    def _served(self, start_script: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFTLINE_BASE_URL", scripted(start_script))

    @property
    def model_override_value(self) -> str:
        return "null"


class TestScriptedJsonSchema(TestScripted):
    """Structured output by a schema that constrains the answer."""

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "json_schema"}


_urls: dict[int, str] = {}


def scripted(start_script: StartServer) -> str:
    """One server for all tests of this module."""
    if id(start_script) not in _urls:
        _urls[id(start_script)] = start_script(SCRIPT)
    return _urls[id(start_script)]
