"""Programs of haystack: a pipeline, and an agent with a tool."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import tool
from haystack.utils import Secret

from tests.clients.conftest import ASK, Sent


@tool
def get_weather(city: Annotated[str, "The city"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def generator(base_url: str) -> Any:
    """A model of the server."""
    key = Secret.from_token("none")
    return OpenAIChatGenerator(api_key=key, model="null", api_base_url=base_url, max_retries=0)


def test_a_pipeline(generator: Any, sent: Sent) -> None:
    """A prompt is written from its template, and the answer comes whole or in parts."""
    pipeline = Pipeline()
    template = [ChatMessage.from_system("Be brief."), ChatMessage.from_user("Say {{ what }}")]
    pipeline.add_component("prompt", ChatPromptBuilder(template=template))
    pipeline.add_component("model", generator)
    pipeline.connect("prompt.prompt", "model.messages")
    parts: list[str] = []

    def keep(chunk: StreamingChunk) -> None:
        parts.append(chunk.content)

    for callback in (None, keep):
        options = {"streaming_callback": callback}
        result = pipeline.run({"prompt": {"what": "hello"}, "model": options})
        [reply] = result["model"]["replies"]
        assert (reply.text, reply.meta["finish_reason"]) == ("Hello there.", "stop")
    assert "".join(parts) == "Hello there." and len(parts) > 1
    assert sent.talks == [["system: Be brief.", "user: Say hello"]] * 2


def test_an_agent(generator: Any, sent: Sent) -> None:
    """The call is made and its result read, in two requests."""
    agent = Agent(chat_generator=generator, tools=[get_weather], system_prompt="Be brief.")
    result = agent.run(messages=[ChatMessage.from_user(ASK)])
    assert result["last_message"].text == "It is sunny in Rome."
    asked = ["system: Be brief.", f"user: {ASK}"]
    assert sent.talks == [asked, [*asked, "call: get_weather(city=Rome)", "tool: sunny in Rome"]]
