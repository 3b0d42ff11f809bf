"""POST /v1/responses with the client of OpenAI, and a browser's page of another origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.integrations.conftest import StartServer

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(start_script: StartServer) -> Iterator[openai.OpenAI]:
    """It says a sentence of a river, calls a tool for the weather, and reads its result."""
    url = start_script(
        [("sunny", "It is sunny."), ("weather", CALL), ("river", "The Rhine flows.")]
    )
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_text(client: openai.OpenAI) -> None:
    """The text, its usage and the status are where the client looks for them."""
    made = client.responses.create(model="null", instructions="Be brief.", input="Name a river.")
    assert made.output_text == "The Rhine flows."
    assert made.status == "completed" and made.incomplete_details is None
    assert made.usage is not None and made.usage.output_tokens == 3
    assert made.usage.input_tokens > 3


def test_a_text_that_is_cut_off(client: openai.OpenAI) -> None:
    """The status says so, and why."""
    made = client.responses.create(model="null", input="Name a river.", max_output_tokens=1)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


def test_a_tool_is_called_and_answered(client: openai.OpenAI) -> None:
    """The call comes back as input with its result, and the model reads both."""
    asked = [{"role": "user", "content": "How is the weather?"}]
    made = client.responses.create(model="null", input=asked, tools=[WEATHER])
    [call] = made.output
    assert call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Rome"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = [*asked, call.model_dump(exclude_none=True), result]
    assert client.responses.create(model="null", input=again, tools=[WEATHER]).output_text == (
        "It is sunny."
    )


@pytest.mark.parametrize(("said", "kind"), [("a river", "message"), ("weather", "function_call")])
def test_a_stream_builds_the_whole(client: openai.OpenAI, said: str, kind: str) -> None:
    """The client's own accumulator makes of the events what the last event holds."""
    tools = [WEATHER] if kind == "function_call" else []  # the prompt shows what they are for
    with client.responses.stream(model="null", input=said, tools=tools) as stream:
        events = list(stream)
        last = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    [item] = last.output
    assert item.type == kind
    deltas = "".join(e.delta for e in events if e.type.endswith(".delta"))
    assert deltas == (last.output_text or item.arguments)


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"input": "a river", "instructions": "Be brief."}, "completed"),
    "cut": ({"input": "a river", "max_output_tokens": 1}, "incomplete"),
    "call": ({"input": "weather", "tools": [WEATHER], "tool_choice": "auto"}, "completed"),
    "named": (
        {
            "input": "weather",
            "tools": [{**WEATHER, "strict": True, "description": "The weather"}],
            "tool_choice": {"type": "function", "name": "get_weather"},
        },
        "completed",
    ),
    "allowed": (
        {
            "input": "weather",
            "tools": [WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
        },
        "completed",
    ),
    "form": ({"input": "a river", "text": {"format": {"type": "json_object"}}}, "completed"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_of_the_clients_types(client: openai.OpenAI, name: str) -> None:
    """Validated, which the client itself does not do: whole, and each event of a stream.

    The response shows the tools and the choice of the request.
    """
    request, status = REQUESTS[name]
    found = TypeAdapter(Response).validate_python(_post(client, request).json())
    assert found.status == status
    shown = [tool.model_dump(exclude_unset=True) for tool in found.tools]
    asked = request.get("tools", [])
    assert [{k: one[k] for k in two} for one, two in zip(shown, asked, strict=True)] == asked
    choice = found.tool_choice
    plain = choice if isinstance(choice, str) else choice.model_dump()
    assert plain == request.get("tool_choice", "auto")
    events = list(_events(client, request))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{status}"
    assert events[-1].response.model_dump(include={"tools", "usage", "tool_choice"}) == (
        found.model_dump(include={"tools", "usage", "tool_choice"})
    )


def test_a_failed_answer_is_of_the_clients_types(start_script: StartServer) -> None:
    """Its session is closed amid the stream. The last event has OpenAI's code and our own type."""
    url = start_script([("", "word " * 1000)], "--null-step-s", "0.01")
    session = httpx2.post(f"{url}/v1/session").json()["session_id"]
    request = {"input": "x", "stream": True, "weftline": {"session_id": session}}
    with httpx2.stream("POST", f"{url}/v1/responses", json=request) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line[:5] == "data:")
        events = (EVENT.validate_json(line) for line in lines)
        next(event for event in events if event.type == "response.output_text.delta")
        httpx2.delete(f"{url}/v1/session/{session}").raise_for_status()
        *_, last = events
    assert last.type == "response.failed" and last.response.status == "failed"
    error = last.response.error
    assert (error.code, error.type) == ("server_error", "Cancelled")
    assert error.message == "the session was closed"


def _post(client: openai.OpenAI, request: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{client.base_url}responses", json=request)


def _events(client: openai.OpenAI, request: dict[str, Any]) -> Iterator[Any]:
    for line in _post(client, {**request, "stream": True}).raise_for_status().text.splitlines():
        if line.startswith("data: "):
            yield EVENT.validate_json(line.removeprefix("data: "))


def test_what_is_not_served_is_named(client: openai.OpenAI) -> None:
    """A template of OpenAI's would be another prompt."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="null", input="x", prompt={"id": "pmpt_1"})
    assert refused.value.param == "prompt"


def test_one_model_is_retrieved(client: openai.OpenAI) -> None:
    """An unknown model is a 404 that names those that are there."""
    assert client.models.retrieve("null").id == "null"
    with pytest.raises(openai.NotFoundError, match="use one of null"):
        client.models.retrieve("gpt-9")
