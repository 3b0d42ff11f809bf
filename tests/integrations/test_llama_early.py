"""LlamaIndex's agents with tools that start early: the same answers, and tools that overlap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llama_index.llms.weftline import Weftline, early


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


RULES = [
    ("found", "Done."),
    ("failed", "It failed."),
    ("look", called("search", query="rivers") + called("search", query="x " * 60)),
    ("twice", called("search", query="rivers") + called("search", query="rivers")),
    ("fail", called("search", query="fail") + called("search", query="fail " * 9)),
]
OPTIONS = ("--null-step-s", "0.004")  # 250 words a second


happened: list[str] = []


class Heard(BaseEventHandler):
    """Notes the ends of model calls."""

    def handle(self, event: Any, **_: Any) -> None:
        if isinstance(event, LLMChatEndEvent):
            happened.append("model ended")


def search(query: str) -> str:
    """Search."""
    happened.append(f"search {query.strip()[:6]}")
    if query.startswith("fail"):
        raise ValueError("failed")
    return f"found {query.strip()[:6]}"


async def asearch(query: str) -> str:
    """Search."""
    await asyncio.sleep(0)
    return search(query)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    happened.clear()
    root, handler = get_dispatcher(), Heard()
    root.add_event_handler(handler)
    yield
    root.event_handlers.remove(handler)


async def ran(url: str, ask: str, tools: list[FunctionTool]) -> tuple[str, list[Any]]:
    """The answer, and the outputs of the tools in the order of their calls."""
    agent = FunctionAgent(tools=tools, llm=Weftline(base_url=url, temperature=0, max_tokens=600))
    handler = agent.run(user_msg=ask)
    outputs = [
        (event.tool_kwargs, event.tool_output.content, event.tool_output.is_error)
        async for event in handler.stream_events()
        if isinstance(event, ToolCallResult)
    ]
    return str(await handler), sorted(outputs, key=str)


@pytest.mark.parametrize("ask", ["look", "twice", "fail"])
async def test_an_agent_is_the_plain_agent(url: str, ask: str) -> None:
    """Answers and observations are equal, and no tool runs more often."""
    for tool in (
        FunctionTool.from_defaults(search),
        FunctionTool.from_defaults(async_fn=asearch, name="search"),
    ):
        happened.clear()
        plain = await ran(url, ask, [tool])
        count = len(happened)
        assert happened[0] == "model ended"
        happened.clear()
        assert await ran(url, ask, early([tool])) == plain
        assert happened[0].startswith("search") and len(happened) == count


async def test_a_result_of_an_answer_that_was_left_is_dropped(url: str) -> None:
    """A later call with the same arguments runs the tool again."""
    [tool] = early([FunctionTool.from_defaults(async_fn=asearch, name="search")])
    llm = Weftline(base_url=url, temperature=0, max_tokens=600)
    responses = await llm.astream_chat_with_tools([tool], user_msg="look")
    async for _ in responses:
        if happened:
            break
    await responses.aclose()
    assert happened == ["search rivers"]
    assert (await tool.acall(query="rivers")).content == "found rivers"
    assert happened == ["search rivers"] * 2


def test_a_tool_with_the_workflows_context_waits_for_its_turn() -> None:
    """Only the workflow can give it."""

    async def remember(ctx: Any, what: str) -> str:
        return what

    remember.__annotations__["ctx"] = Context
    tool = FunctionTool.from_defaults(remember)
    assert early([tool]) == [tool]
