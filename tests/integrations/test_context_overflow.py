"""LangChain knows a context that overflows by the server's answer, and its summaries go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langchain_weftline import ChatWeftline
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_server.app import create_app
from weftline_server.config import ServerConfig

LONG = "word " * 1000
SHORT_WORDS = "w " * 450  # only the engine finds them too many, when the stream has begun
SCRIPT = (("Context Extraction Assistant", "They talked of rivers."), ("Which?", "The Tiber."))
Make = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="session", params=[ChatOpenAI, ChatWeftline])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes a model of a server in this process, whose context holds 400 tokens."""
    null = NullConfig(mode=NullMode.SCRIPT, script=SCRIPT, context_limit=400)
    app = create_app(ServerConfig(), {"null": lambda: NullEngine(null)})
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            yield lambda **more: request.param(
                base_url="http://here/v1",
                api_key=SecretStr("none"),
                model="null",
                max_retries=0,
                http_async_client=http,
                **more,
            )


@pytest.mark.parametrize("responses", [False, True])
async def test_a_long_prompt_is_a_context_overflow(make: Make, responses: bool) -> None:
    """Whole and streamed. ChatWeftline has no use for responses."""
    llm = make()
    if responses and type(llm) is ChatOpenAI:
        llm = make(use_responses_api=True)
    with pytest.raises(ContextOverflowError):
        await llm.ainvoke(LONG)
    with pytest.raises(ContextOverflowError):
        async for _ in llm.astream(LONG):
            pass


async def test_a_stream_that_ends_for_it_is_a_context_overflow(make: Make) -> None:
    """LangChain knows such a stream by the words of its error."""
    with pytest.raises(ContextOverflowError):
        async for _ in make().astream(SHORT_WORDS):
            pass


async def test_a_summary_that_overflows_is_made_of_less(make: Make) -> None:
    """SummarizationMiddleware asks once more with half of the conversation, and the agent goes
    on."""
    llm = make()
    summary = SummarizationMiddleware(
        llm, trigger=("messages", 3), keep=("messages", 1), trim_tokens_to_summarize=None,
        summary_prompt="Context Extraction Assistant: {messages}",
    )  # fmt: skip
    agent: Any = create_agent(llm, [], middleware=[summary])
    said = [HumanMessage("word " * 250), AIMessage("word " * 250), HumanMessage("Which?")]
    state = await agent.ainvoke({"messages": said})
    first, *_, last = state["messages"]
    assert "They talked of rivers." in first.text
    assert last.text == "The Tiber."
