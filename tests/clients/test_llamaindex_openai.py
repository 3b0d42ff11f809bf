"""Programs of LlamaIndex's own OpenAI classes, on chats and on responses.

The classes look the size of their context up by one of OpenAI's names. The name that is sent stands
in `additional_kwargs`.
"""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI, OpenAIResponses

from tests.clients.conftest import ASK, NAME, River, Sent, get_weather

PATHS = {OpenAI: "/v1/chat/completions", OpenAIResponses: "/v1/responses"}


def class_of(kind: Any, base_url: str) -> Any:
    """A class with a model of the server."""
    named = {"model": "null"}
    return kind("gpt-4o", additional_kwargs=named, api_base=base_url, api_key="none", max_retries=0)


@pytest.fixture(params=PATHS, ids=lambda kind: kind.__name__)
def llm(request: pytest.FixtureRequest, base_url: str) -> Any:
    """Each of the two classes."""
    return class_of(request.param, base_url)


def test_an_answer(llm: Any) -> None:
    """Whole and streamed."""
    asked = [ChatMessage(role=MessageRole.USER, content=NAME)]
    whole = llm.chat(asked).message.content
    assert whole == '{"name": "Rhine", "km": 1230}'
    assert [part.message.content for part in llm.stream_chat(asked)][-1] == whole


def test_a_call_of_a_tool(llm: Any) -> None:
    """The call is read, and its result answers it."""
    tool = FunctionTool.from_defaults(get_weather)
    made = llm.predict_and_call([tool], user_msg=ASK)
    assert made.response == "sunny in Rome"


async def test_an_agent(llm: Any, sent: Sent) -> None:
    """The agent streams its turns, runs the tool and reads the result."""
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=llm)
    assert str(await agent.run(user_msg=ASK)) == "It is sunny in Rome."
    assert sent.paths == {PATHS[type(llm)]}
    assert {body["model"] for body in sent.bodies} == {"null"}


def test_an_object(base_url: str) -> None:
    """As the form of the answer of a chat. For a response the class sends OpenAI's name."""
    found = class_of(OpenAI, base_url).as_structured_llm(River).complete(NAME).raw
    assert found == River(name="Rhine", km=1230)
