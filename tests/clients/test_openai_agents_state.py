"""Programs of openai-agents that leave their conversation with the server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner

from tests.clients.conftest import ASK, Sent
from tests.clients.test_openai_agents import get_weather


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def agent(client: openai.AsyncOpenAI) -> Agent:
    return Agent(name="one", model=OpenAIResponsesModel("null", client), tools=[get_weather])


async def test_a_session(agent: Agent, client: openai.AsyncOpenAI) -> None:
    """Each run reads the conversation's items and adds its own. The last one is taken back."""
    session = OpenAIConversationsSession(openai_client=client)
    first = await Runner.run(agent, ASK, session=session)
    assert first.final_output == "It is sunny in Rome."
    second = await Runner.run(agent, "And now?", session=session)
    assert second.final_output == "It is sunny in Rome."
    kinds = ["message", "function_call", "function_call_output", "message"]
    found = await session.get_items()
    assert [one["type"] for one in found] == [*kinds, "message", "message"]
    assert await session.get_items(limit=1) == found[-1:]
    assert await session.pop_item() == found[-1]
    assert await session.get_items() == found[:-1]
    await session.clear_session()
    assert await session.get_items() == []


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_last_response(agent: Agent, sent: Sent, streamed: bool) -> None:
    """Each turn names the response before it, and sends what is new."""
    if streamed:
        result = Runner.run_streamed(agent, ASK, auto_previous_response_id=True)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, ASK, auto_previous_response_id=True)
    assert result.final_output == "It is sunny in Rome."
    last = result.last_response_id
    again = await Runner.run(agent, "And now?", previous_response_id=last)
    assert again.final_output == "It is sunny in Rome."
    assert sent.talks[0] == [f"user: {ASK}"]
    assert sent.talks[1:] == [["tool: sunny in Rome"], ["user: And now?"]]
    assert sent.bodies[2]["previous_response_id"] == last


async def test_a_conversation(agent: Agent, client: openai.AsyncOpenAI, sent: Sent) -> None:
    """The server adds what is new to the conversation that the run names."""
    talk = (await client.conversations.create()).id
    await Runner.run(agent, ASK, conversation_id=talk)
    result = await Runner.run(agent, "And now?", conversation_id=talk)
    assert result.final_output == "It is sunny in Rome."
    items = [one async for one in client.conversations.items.list(talk, order="asc")]
    kinds = ["message", "function_call", "function_call_output", "message", "message", "message"]
    assert [one.type for one in items] == kinds
