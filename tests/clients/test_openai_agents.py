"""Programs of the package openai-agents, on chats and on responses, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from agents.tracing import get_trace_provider

from tests.clients.conftest import ASK, NAME, River, Sent

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
CALL = "call: get_weather(city=Rome)"
SEEN = "tool: sunny in Rome"
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture(params=PATHS)
async def model(request: pytest.FixtureRequest, base_url: str) -> AsyncIterator[Any]:
    """A model on each of the two APIs."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        kinds = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
        yield kinds[request.param]("null", client)


@pytest.fixture(params=["whole", "streamed"])
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a program to its end, and gives its result."""

    async def whole(agent: Any, said: Any) -> Any:
        return await Runner.run(agent, said)

    async def streamed(agent: Any, said: Any) -> Any:
        result = Runner.run_streamed(agent, said)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        last = result.new_items[-1].raw_item
        assert "".join(deltas).endswith(last.content[0].text)
        return result

    return whole if request.param == "whole" else streamed


def told(model: Any, *lines: str) -> list[str]:
    """A conversation. The instructions are a message of a chat, and a field of a response."""
    return [
        *(["system: Be brief."] if isinstance(model, OpenAIChatCompletionsModel) else []),
        *lines,
    ]


async def test_a_text(model: Any, run: Any, sent: Sent) -> None:
    """One request, with the instructions where each API has them."""
    agent = Agent(name="one", instructions="Be brief.", model=model)
    assert (await run(agent, "Hi")).final_output == "Hello there."
    assert sent.talks == [told(model, "user: Hi")]
    assert sent.bodies[0].get("instructions", "Be brief.") == "Be brief."


async def test_a_tool(model: Any, run: Any, sent: Sent) -> None:
    """The call is made and its result read, in two requests."""
    agent = Agent(name="one", instructions="Be brief.", model=model, tools=[get_weather])
    result = await run(agent, ASK)
    assert result.final_output == "It is sunny in Rome."
    asked = told(model, f"user: {ASK}")
    assert sent.talks == [asked, [*asked, CALL, SEEN]]
    assert all(len(body["tools"]) == 1 for body in sent.bodies)


async def test_two_calls_at_once(model: Any, run: Any, sent: Sent) -> None:
    """Both calls are of one answer, and both results go back in one request."""
    agent = Agent(name="one", model=model, tools=[get_weather])
    assert (await run(agent, "Look in both")).final_output == "It is sunny in Rome."
    said = "user: Look in both"
    assert sent.talks == [[said], [said, CALL, CALL, SEEN, SEEN]]


async def test_structured_output(model: Any, run: Any, sent: Sent) -> None:
    """The type's schema is the form of the answer, which the client reads."""
    agent = Agent(name="one", model=model, output_type=River)
    assert (await run(agent, NAME)).final_output == River(name="Rhine", km=1230)
    assert sent.talks == [[f"user: {NAME}"]]
    [body] = sent.bodies
    if "text" in body:
        schema = body["text"]["format"]["schema"]
    else:
        schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["name", "km"]


async def test_a_conversation_goes_on_after_a_thought(model: Any, run: Any, sent: Sent) -> None:
    """The client sends back what came, with a `reasoning` item of another model between."""
    agent = Agent(name="one", model=model, tools=[get_weather])
    first = await run(agent, ASK)
    [user, *rest] = first.to_input_list()
    result = await run(agent, [user, THOUGHT, *rest, {"role": "user", "content": "And now?"}])
    assert result.final_output == "It is sunny in Rome."
    said = [CALL, SEEN, "assistant: It is sunny in Rome.", "user: And now?"]
    last = [line for line in sent.talks[-1] if line != "reasoning"]
    assert last == [f"user: {ASK}", *said]
    assert sent.paths == {PATHS["responses" if "input" in sent.bodies[0] else "chat"]}


async def test_a_handoff(model: Any, run: Any, sent: Sent) -> None:
    """Another agent takes the conversation. The handoff is the call of a tool."""
    other = Agent(name="other", model=model, instructions="Be brief.")
    agent = Agent(name="one", model=model, handoffs=[other])
    result = await run(agent, "Ask the other")
    assert result.last_agent is other
    assert len(sent.bodies) == 2
    assert sent.talks[1] == told(
        model, "user: Ask the other", "call: transfer_to_other()", 'tool: {"assistant": "other"}'
    )


async def test_a_tool_that_must_be_called(model: Any, run: Any, sent: Sent) -> None:
    """By its name in the settings."""
    settings = ModelSettings(tool_choice="get_weather")
    agent = Agent(name="one", model=model, tools=[get_weather], model_settings=settings)
    assert (await run(agent, ASK)).final_output == "It is sunny in Rome."
    assert "get_weather" in str(sent.bodies[0]["tool_choice"])


async def test_an_error(base_url: str, model: Any, run: Any) -> None:
    """An unknown model is the client's own error."""
    model.model = "nosuch"
    with pytest.raises(openai.NotFoundError, match="no engine serves model 'nosuch'"):
        await run(Agent(name="one", model=model), "Hi")


def test_nothing_is_traced() -> None:
    """Spans would go to OpenAI's servers. What this suite opens are connections to loopback."""
    with get_trace_provider().create_trace("one") as trace:
        assert trace.export() is None
