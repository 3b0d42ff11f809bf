"""Programs of the package anthropic, and of ChatAnthropic on it, on messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage

from tests.clients.conftest import ASK, NAME, River, Sent

TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
SAID: Any = {"role": "user", "content": ASK}
ASKED: Any = {"model": "null", "max_tokens": 99, "tools": [TOOL]}


@pytest.fixture
def client(sent: Sent) -> Iterator[anthropic.Anthropic]:
    """The package's own client."""
    url = sent.recording.url
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool(client: anthropic.Anthropic, is_streamed: bool) -> None:
    """The call comes, its result goes back, and the answer ends the turn."""

    def ask(*messages: Any) -> Any:
        if not is_streamed:
            return client.messages.create(messages=messages, **ASKED)
        with client.messages.stream(messages=messages, **ASKED) as stream:
            return stream.get_final_message()

    first = ask(SAID)
    [call] = first.content
    assert (call.name, call.input, first.stop_reason) == (
        "get_weather",
        {"city": "Rome"},
        "tool_use",
    )
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny in Rome"}
    answer = {"role": "assistant", "content": first.content}
    second = ask(SAID, answer, {"role": "user", "content": [result]})
    assert (second.content[0].text, second.stop_reason) == ("It is sunny in Rome.", "end_turn")
    assert second.usage.output_tokens > 0


def test_a_loop_of_tools(client: anthropic.Anthropic) -> None:
    """The package runs the tool itself until the model calls none."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    run = client.beta.messages.tool_runner(
        model="null", max_tokens=99, tools=[get_weather], messages=[SAID]
    )
    assert run.until_done().content[0].text == "It is sunny in Rome."


def test_an_answer_in_a_form(client: anthropic.Anthropic) -> None:
    """The text is held to the schema, and the package reads the object."""
    asked: Any = [{"role": "user", "content": NAME}]
    found = client.messages.parse(model="null", max_tokens=99, messages=asked, output_format=River)
    assert found.parsed_output == River(name="Rhine", km=1230)


def test_errors_are_the_packages_own(client: anthropic.Anthropic) -> None:
    """A model that is not served, and a block that is not."""
    with pytest.raises(anthropic.NotFoundError, match="other"):
        client.messages.create(model="other", max_tokens=9, messages=[SAID])
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0: a block of"):
        client.messages.create(
            model="null", max_tokens=9, messages=[{"role": "user", "content": [image]}]
        )


def test_langchain(sent: Sent) -> None:
    """ChatAnthropic: a call with its result, and a stream, with the usage."""
    model = ChatAnthropic(
        model="null", base_url=sent.recording.url, api_key="none", max_tokens=99, max_retries=0
    )
    tools = model.bind_tools([TOOL])
    first = tools.invoke([HumanMessage(ASK)])
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"})
    told = ToolMessage("sunny in Rome", tool_call_id=call["id"])
    whole = AIMessageChunk(content="")
    for part in tools.stream([HumanMessage(ASK), first, told]):
        whole += part
    assert whole.text == "It is sunny in Rome."
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0
    assert model.with_structured_output(River).invoke("Call River") == River(name="Rhine", km=1230)
