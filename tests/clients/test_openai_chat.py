"""Programs of the package openai on chats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.conftest import ASK, NAME, River, Sent

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
SAID: Any = {"role": "user", "content": ASK}


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    """The package's own client."""
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool(client: openai.OpenAI, is_streamed: bool, sent: Sent) -> None:
    """The call comes, its result goes back, and the answer ends the turn."""

    def ask(*messages: Any) -> Any:
        if not is_streamed:
            return client.chat.completions.create(model="null", messages=messages, tools=[TOOL])
        with client.chat.completions.stream(
            model="null", messages=messages, tools=[TOOL], stream_options={"include_usage": True}
        ) as stream:
            return stream.get_final_completion()

    first = ask(SAID)
    [call] = first.choices[0].message.tool_calls
    assert (call.function.name, first.choices[0].finish_reason) == ("get_weather", "tool_calls")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny in Rome"}
    asked = first.choices[0].message.to_dict()
    second = ask(SAID, asked, result)
    assert second.choices[0].message.content == "It is sunny in Rome."
    assert second.usage.completion_tokens > 0
    assert sent.talks[1] == [f"user: {ASK}", "call: get_weather(city=Rome)", "tool: sunny in Rome"]


def test_an_answer_in_a_form(client: openai.OpenAI) -> None:
    """The text is held to the schema, and the package reads the object."""
    asked: Any = [{"role": "user", "content": NAME}]
    found = client.chat.completions.parse(model="null", messages=asked, response_format=River)
    assert found.choices[0].message.parsed == River(name="Rhine", km=1230)


def test_errors_are_the_packages_own(client: openai.OpenAI) -> None:
    """A model that is not served, and a message without a role."""
    with pytest.raises(openai.NotFoundError, match="other"):
        client.chat.completions.create(model="other", messages=[SAID])
    wrong: Any = {"content": "Hi"}
    with pytest.raises(openai.BadRequestError, match=r"messages\.0"):
        client.chat.completions.create(model="null", messages=[wrong])
