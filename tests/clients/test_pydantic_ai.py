"""Programs of the package pydantic-ai, on chats, responses and messages, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import ASK, NAME, River, Sent, get_weather

CALL = "call: get_weather(city=Rome)"
SEEN = "tool: sunny in Rome"
KINDS: dict[str, Any] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
APIS = (*KINDS, "messages")


@pytest.fixture(params=APIS)
async def model(request: pytest.FixtureRequest, sent: Sent, base_url: str) -> AsyncIterator[Any]:
    """A model on each of the three APIs."""
    if request.param == "messages":
        url = sent.recording.url
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            provider = AnthropicProvider(anthropic_client=client)
            profile: Any = {"supports_json_schema_output": True}  # as of Anthropic's own models
            yield AnthropicModel("null", provider=provider, profile=profile)
        return
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield KINDS[request.param]("null", provider=OpenAIProvider(openai_client=client))


@pytest.fixture(params=["whole", "streamed"])
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a program to its end, and gives its output and its messages."""

    async def whole(agent: Any, said: Any, **options: Any) -> tuple[Any, list[Any]]:
        result = await agent.run(said, **options)
        return result.output, result.all_messages()

    async def streamed(agent: Any, said: Any, **options: Any) -> tuple[Any, list[Any]]:
        async with agent.run_stream(said, **options) as result:
            outputs = [output async for output in result.stream_output(debounce_by=None)]
            assert outputs[-1] == await result.get_output()
            return outputs[-1], result.all_messages()

    return whole if request.param == "whole" else streamed


def told(model: Any, *lines: str) -> list[str]:
    """A conversation. The instructions are a message of a chat, and a field of a response."""
    return [*(["system: Be brief."] if isinstance(model, OpenAIChatModel) else []), *lines]


async def test_a_text(model: Any, run: Any, sent: Sent) -> None:
    """One request, with the instructions where each API has them."""
    agent = Agent(model, instructions="Be brief.")
    assert (await run(agent, "Hi"))[0] == "Hello there."
    assert sent.talks == [told(model, "user: Hi")]
    assert sent.bodies[0].get("instructions", "Be brief.") == "Be brief."


async def test_a_tool(model: Any, run: Any, sent: Sent) -> None:
    """The call is made and its result read, in two requests."""
    agent = Agent(model, instructions="Be brief.", tools=[get_weather])
    assert (await run(agent, ASK))[0] == "It is sunny in Rome."
    asked = told(model, f"user: {ASK}")
    assert sent.talks == [asked, [*asked, CALL, SEEN]]


async def test_two_calls_at_once(model: Any, run: Any, sent: Sent) -> None:
    """Both calls are of one answer, and both results go back in one request."""
    agent = Agent(model, tools=[get_weather])
    assert (await run(agent, "Look in both"))[0] == "It is sunny in Rome."
    said = "user: Look in both"
    assert sent.talks == [[said], [said, CALL, CALL, SEEN, SEEN]]


@pytest.mark.parametrize("form", [NativeOutput, ToolOutput, PromptedOutput])
async def test_structured_output(model: Any, run: Any, sent: Sent, form: Any) -> None:
    """As the form of the answer, as the arguments of a tool, and as a wish in the prompt."""
    agent = Agent(model, output_type=form(River))
    asked = f"{NAME} Call final_result." if form is ToolOutput else NAME
    assert (await run(agent, asked))[0] == River(name="Rhine", km=1230)
    [body] = sent.bodies
    shape = body.get("response_format") or body.get("text", body.get("output_config", {})).get(
        "format"
    )
    wish = None if isinstance(model, AnthropicModel) else "json_object"
    kinds = {NativeOutput: "json_schema", PromptedOutput: wish, ToolOutput: None}
    assert (shape and shape["type"]) == kinds[form]
    assert ("tools" in body) == (form is ToolOutput)


async def test_a_conversation_goes_on(model: Any, run: Any, sent: Sent) -> None:
    """The client sends back what came, and one message more."""
    agent = Agent(model, tools=[get_weather])
    _, messages = await run(agent, ASK)
    output, _ = await run(agent, "And now?", message_history=messages)
    assert output == "It is sunny in Rome."
    rest = [CALL, SEEN, "assistant: It is sunny in Rome.", "user: And now?"]
    assert sent.talks[-1] == [f"user: {ASK}", *rest]


async def test_a_thought_of_a_response_is_sent_back(base_url: str, sent: Sent) -> None:
    """As a `reasoning` item before the answer that it led to."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel("null", provider=OpenAIProvider(openai_client=client))
        thought = ThinkingPart("", id="rs_1", signature="x", provider_name=model.system)
        answer = ModelResponse([thought, TextPart("Hello.", id="msg_1")])
        answer.provider_name = model.system
        history = [ModelRequest.user_text_prompt("Hi"), answer]
        profile = {"openai_supports_encrypted_reasoning_content": True}
        agent = Agent(OpenAIResponsesModel("null", provider=model._provider, profile=profile))
        result = await agent.run("And now?", message_history=history)
    assert result.output == "Hello there."
    assert sent.talks == [["user: Hi", "reasoning", "assistant: Hello.", "user: And now?"]]


async def test_tools_of_which_some_are_allowed(model: Any, run: Any, sent: Sent) -> None:
    """One of two functions, and the tool by which the client gets its output. Anthropic's API has
    no such choice, so the other function is not sent there."""

    def get_time() -> str:
        """The time."""
        return "noon"

    agent = Agent(model, tools=[get_weather, get_time], output_type=ToolOutput(River))
    chosen = {"tool_choice": ["get_weather", "final_result"]}
    asked = f"{NAME} Call final_result."
    output, _ = await run(agent, asked, model_settings=chosen)
    assert output == River(name="Rhine", km=1230)
    [body] = sent.bodies
    choice = body["tool_choice"]
    if isinstance(model, AnthropicModel):
        assert choice["type"] == "any" and len(body["tools"]) == 2
        return
    assert choice["type"] == "allowed_tools" and len(body["tools"]) == 3
    assert len(choice.get("allowed_tools", choice)["tools"]) == 2


async def test_an_error(model: Any, run: Any) -> None:
    """An unknown model is the client's own error."""
    model._model_name = "nosuch"
    with pytest.raises(ModelHTTPError, match="no engine serves model 'nosuch'") as refused:
        await run(Agent(model), "Hi")
    assert refused.value.status_code == 404
