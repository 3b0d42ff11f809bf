"""Programs of LlamaIndex's Anthropic class on messages.

The class looks the size of its context up by one of Anthropic's names. The name that is sent stands
in `additional_kwargs`.
"""

from __future__ import annotations

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic

from tests.clients.conftest import ASK, NAME, River, Sent, get_weather


@pytest.fixture
def llm(sent: Sent) -> Anthropic:
    """The class with a model of the server."""
    return Anthropic(
        model="claude-sonnet-4-0",
        additional_kwargs={"model": "null"},
        base_url=sent.recording.url,
        api_key="none",
        max_tokens=99,
        max_retries=0,
    )


def test_an_answer(llm: Anthropic) -> None:
    """Whole and streamed."""
    asked = [ChatMessage(role=MessageRole.USER, content=NAME)]
    whole = llm.chat(asked).message.content
    assert whole == '{"name": "Rhine", "km": 1230}'
    assert [part.message.content for part in llm.stream_chat(asked)][-1] == whole
    assert llm.complete(NAME).text == whole


def test_a_call_of_a_tool(llm: Anthropic) -> None:
    """The call is read, and its result answers it."""
    tool = FunctionTool.from_defaults(get_weather)
    made = llm.predict_and_call([tool], user_msg=ASK)
    assert made.response == "sunny in Rome"


async def test_an_agent(llm: Anthropic, sent: Sent) -> None:
    """The agent streams its turns, runs the tool and reads the result."""
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=llm)
    assert str(await agent.run(user_msg=ASK)) == "It is sunny in Rome."
    assert sent.paths == {"/v1/messages"}
    assert {body["model"] for body in sent.bodies} == {"null"}


def test_an_object(llm: Anthropic) -> None:
    """By a forced call of a tool that has the fields."""
    found = llm.as_structured_llm(River).complete("Call River").raw
    assert found == River(name="Rhine", km=1230)
