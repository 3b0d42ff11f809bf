"""An endpoint behind the server gets the tools of both frameworks as it gets them without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.weftline import Weftline

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.conftest import served
from tests.integrations.scripted_endpoint import (
    ANSWER,
    CALLS,
    MODEL,
    ScriptedEndpoint,
    scripted_endpoint,
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ScriptedEndpoint]:
    with scripted_endpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def server(endpoint: ScriptedEndpoint) -> Iterator[str]:
    with served("--engine", "openai", "--connect", endpoint.url) as url:
        endpoint.bodies.clear()
        yield url


@tool
def warmth(town: str) -> str:
    """How warm a town is."""
    return f"{town}: warm"


ASK = [SystemMessage("Be brief."), HumanMessage("Rome and Oslo?")]
EARLIER = [
    *ASK,
    AIMessage(
        "",
        tool_calls=[
            {"name": "warmth", "args": {"town": "Rome"}, "id": "a"},
            {"name": "warmth", "args": {"town": "Oslo"}, "id": "b"},
        ],
    ),
    ToolMessage("warm", tool_call_id="a"),
    ToolMessage("cold", tool_call_id="b"),
]
WISHES: list[dict[str, Any]] = [
    {},
    {"tool_choice": "auto"},
    {"tool_choice": "any"},
    {"tool_choice": "none"},
    {"tool_choice": "warmth", "parallel_tool_calls": False},
    {"parallel_tool_calls": True},
    {"strict": True},
]


def models(endpoint: ScriptedEndpoint, server: str) -> tuple[ChatOpenAI, ChatWeftline]:
    plain = ChatOpenAI(base_url=endpoint.url, api_key="k", model=MODEL)  # type: ignore[arg-type]
    return plain, ChatWeftline(base_url=server)


@pytest.mark.parametrize("wishes", WISHES, ids=str)
def test_langchain_binds_tools(
    wishes: dict[str, Any], endpoint: ScriptedEndpoint, server: str
) -> None:
    """Whole and streamed, without a history and with one."""
    told = []
    for llm in models(endpoint, server):
        bound = llm.bind_tools([warmth], **wishes)
        for talk in (ASK, EARLIER):
            made = bound.invoke(talk)
            calls = [(one["name"], one["args"]["town"]) for one in made.tool_calls]
            streamed = None
            for chunk in bound.stream(talk):
                streamed = chunk if streamed is None else streamed + chunk
            assert streamed is not None and isinstance(streamed, AIMessage)
            assert [(one["name"], one["args"]["town"]) for one in streamed.tool_calls] == calls
            assert made.usage_metadata is not None
            assert made.usage_metadata["input_tokens"] == 7
            expected = [] if talk is EARLIER or wishes.get("tool_choice") == "none" else ["Rome"]
            assert [town for _, town in calls][:1] == expected
        told.append(endpoint.chats())
    assert told[1] == told[0]


@pytest.mark.parametrize("way", ["swapped", "accelerated"])
def test_a_langchain_agent(way: str, endpoint: ScriptedEndpoint, server: str) -> None:
    """Both calls run, and their results go back."""
    told = []
    for llm in models(endpoint, server):
        agent: Any = create_agent(llm, [warmth], system_prompt="Be brief.")
        if way == "accelerated" and isinstance(llm, ChatWeftline):
            agent = accelerate(agent)
        made = agent.invoke({"messages": [("user", "Rome and Oslo?")]})["messages"]
        assert [one.type for one in made] == ["human", "ai", "tool", "tool", "ai"]
        assert made[-1].content == ANSWER
        told.append(endpoint.chats())
    assert len(told[0]) == 2 and told[1] == told[0]


def test_a_call_sent_ahead(endpoint: ScriptedEndpoint, server: str) -> None:
    """The template and the tools of a chain that is sent ahead are the endpoint's fields, too."""
    from langchain_core.prompts import ChatPromptTemplate

    told = []
    for llm in models(endpoint, server):
        chain: Any = ChatPromptTemplate.from_template("{town}?") | llm.bind_tools([warmth])
        if isinstance(llm, ChatWeftline):
            chain = accelerate(chain, on_graph=lambda graph: None)
        assert len(chain.invoke({"town": "Rome"}).tool_calls) == len(CALLS)
        told.append(endpoint.chats())
    assert told[1] == told[0]


def llama_models(endpoint: ScriptedEndpoint, server: str) -> tuple[Weftline, Weftline]:
    """One that asks the endpoint itself, and one that asks the server."""
    return Weftline(base_url=endpoint.url, model=MODEL), Weftline(base_url=server)


def heat(town: str) -> str:
    """How warm a town is."""
    return f"{town}: warm"


WARMTH = FunctionTool.from_defaults(heat, name="warmth")
LLAMA_WISHES: list[dict[str, Any]] = [
    {},
    {"tool_required": True},
    {"allow_parallel_tool_calls": True},
    {"tool_choice": "warmth"},
]


@pytest.mark.parametrize("wishes", LLAMA_WISHES, ids=str)
def test_llamaindex_calls_tools(
    wishes: dict[str, Any], endpoint: ScriptedEndpoint, server: str
) -> None:
    """Whole and streamed. Without parallel calls LlamaIndex itself keeps the first."""
    told, calls = [], []
    history = [ChatMessage(role=MessageRole.SYSTEM, content="Be brief.")]
    for llm in llama_models(endpoint, server):
        made = llm.chat_with_tools([WARMTH], "Rome?", chat_history=list(history), **wishes)
        *_, last = llm.stream_chat_with_tools(
            [WARMTH], "Rome?", chat_history=list(history), **wishes
        )
        found = [llm.get_tool_calls_from_response(one) for one in (made, last)]
        calls.append([[one.tool_kwargs for one in each] for each in found])
        told.append(endpoint.chats())
    assert told[1] == told[0]
    assert calls[1] == calls[0]


async def test_a_llamaindex_agent(endpoint: ScriptedEndpoint, server: str) -> None:
    """Both calls run, and their results go back."""
    told = []
    for llm in llama_models(endpoint, server):
        agent = FunctionAgent(tools=[WARMTH], llm=llm, system_prompt="Be brief.")
        assert str(await agent.run("Rome and Oslo?")) == ANSWER
        told.append(endpoint.chats())
    assert len(told[0]) == 2 and told[1] == told[0]
