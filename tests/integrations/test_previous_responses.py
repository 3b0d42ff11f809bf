"""LangChain's ChatOpenAI on /v1/responses, which sends each turn what is new alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_responses import CALL

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture
def sent(start_script: StartServer) -> Iterator[Recording]:
    """It calls a tool for the weather and reads its result."""
    url = start_script([("And now", "Still."), ("sunny", "It is sunny."), ("weather", CALL)])
    with recorded(url) as recording:
        yield recording


def test_each_turn_continues_the_response_before(sent: Recording) -> None:
    """Its result and its question are the whole input; the model reads the turns before them."""
    model: Any = ChatOpenAI(
        base_url=f"{sent.url}/v1", api_key="none", model="null", max_retries=0,
        use_responses_api=True, use_previous_response_id=True,
    ).bind_tools([TOOL])  # type: ignore[arg-type]  # fmt: skip
    messages: list[BaseMessage] = [HumanMessage("How is the weather?")]
    first: AIMessage = model.invoke(messages)
    [call] = first.tool_calls
    messages += [first, ToolMessage("sunny", tool_call_id=call["id"])]
    second: AIMessage = model.invoke(messages)
    assert second.text == "It is sunny."
    messages += [second, HumanMessage("And now?")]
    third = model.invoke(messages)
    assert third.text == "Still."
    bodies = [body for _, _, body in sent.requests]
    ids = [one.response_metadata["id"] for one in (first, second)]
    assert [body.get("previous_response_id") for body in bodies] == [None, *ids]
    assert [[item["type"] for item in body["input"]] for body in bodies] == [
        ["message"], ["function_call_output"], ["message"],
    ]  # fmt: skip
    streamed = [part.text for part in model.stream([*messages, third, HumanMessage("And now?")])]
    assert "".join(streamed) == "Still."
