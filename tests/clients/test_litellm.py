"""A program of the package litellm, by each of its names for a server like this one."""

from __future__ import annotations

from typing import Any

import litellm
import pytest

from tests.clients.conftest import ASK, NAME, River, Sent

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

# The package's own types of a login, which pydantic reads when the package is imported.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Items? .* using the .ReadOnly. qualifier:UserWarning"
)


@pytest.fixture(params=["openai/null", "hosted_vllm/null"])
def options(request: pytest.FixtureRequest, base_url: str) -> dict[str, Any]:
    """What each call is made with."""
    return {"model": request.param, "api_base": base_url, "api_key": "none", "max_retries": 0}


def test_a_tool(options: dict[str, Any], sent: Sent) -> None:
    """The call comes, its result goes back, and the answer is streamed and put together."""
    said: list[Any] = [{"role": "user", "content": ASK}]
    first = litellm.completion(messages=said, tools=[TOOL], **options).choices[0]
    [call] = first.message.tool_calls
    assert first.finish_reason == "tool_calls"
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Rome"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny in Rome"}
    said += [first.message, result]
    parts = list(litellm.completion(messages=said, tools=[TOOL], stream=True, **options))
    whole = litellm.stream_chunk_builder(parts)
    assert whole is not None and whole.choices[0].message.content == "It is sunny in Rome."
    assert len(parts) > 1 and whole.choices[0].finish_reason == "stop"
    asked = f"user: {ASK}"
    assert sent.talks == [[asked], [asked, "call: get_weather(city=Rome)", "tool: sunny in Rome"]]


async def test_structured_output(options: dict[str, Any], sent: Sent) -> None:
    """The type's schema is the form of the answer."""
    said = [{"role": "user", "content": NAME}]
    answer = await litellm.acompletion(messages=said, response_format=River, **options)
    assert River.model_validate_json(answer.choices[0].message.content).km == 1230
    assert answer.usage.completion_tokens > 0
    [body] = sent.bodies
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["name", "km"]


def test_an_error(options: dict[str, Any]) -> None:
    """An unknown model is the client's own error."""
    said = [{"role": "user", "content": "Hi"}]
    options["model"] = options["model"].replace("null", "nosuch")
    with pytest.raises(litellm.NotFoundError, match="no engine serves model 'nosuch'"):
        litellm.completion(messages=said, **options)
