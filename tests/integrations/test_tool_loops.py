"""The turns of an agent are one session, and each turn reads the tool calls of those before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.weftline import Weftline

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.recording import recorded
from weftline.kit import Piece, RunSession


def called(*queries: str) -> str:
    calls = ({"name": "search", "arguments": {"query": query}} for query in queries)
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)


RULES = [
    ("found two", "Done."),
    ("found one", called("two")),
    ("", called("one", "uno")),
]


def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def edges_of_latest(url: str) -> list[tuple[int, int]]:
    """The edges between the calls of the latest session, by the calls' positions."""
    session = httpx2.get(f"{url}/v1/sessions").json()["sessions"][0]["session_id"]
    graph = httpx2.get(f"{url}/v1/session/{session}/graph").json()
    at = {call["call_id"]: number for number, call in enumerate(graph["calls"])}
    return sorted((at[edge["from"]], at[edge["to"]]) for edge in graph["edges"])


async def invoked(agent: Any, config: Any) -> Any:
    return await agent.ainvoke({"messages": [("user", "look")]}, config)


async def streamed(agent: Any, config: Any) -> Any:
    given = {"messages": [("user", "look")]}
    return [part async for part in agent.astream(given, config, stream_mode="messages")]


@pytest.mark.parametrize("run", [invoked, streamed])
async def test_create_agent(url: str, run: Callable[[Any, Any], Any]) -> None:
    """Three turns: the second reads the first, and the third reads both. So does a later run."""
    llm = ChatWeftline(base_url=url, temperature=0)
    agent = accelerate(create_agent(llm, [search], checkpointer=InMemorySaver()))
    config = {"configurable": {"thread_id": "a"}}
    await run(agent, config)
    assert edges_of_latest(url) == [(0, 1), (0, 2), (1, 2)]
    await run(agent, config)
    assert {(0, 3), (1, 3)} <= set(edges_of_latest(url))


@pytest.mark.parametrize("streaming", [False, True])
async def test_function_agent(url: str, streaming: bool) -> None:
    """LlamaIndex's agent makes the same turns, with the same edges."""
    with recorded(url) as recording:
        llm = Weftline(api_base=recording.url, is_function_calling_model=True)
        agent = FunctionAgent(tools=[search], llm=llm, streaming=streaming)
        handler = agent.run("look")
        async for _ in handler.stream_events():
            pass
        assert str(await handler) == "Done."
        bodies = recording.bodies("/v1/chat/completions")
    told = [body["weftline"]["messages"] for body in bodies]
    sources = [[p["from_var"] for m in one for p in m or () if "from_var" in p] for one in told]
    first, second = sources[2]
    assert sources == [[], [first], [first, second]]
    assert first != second


class Session(RunSession):
    """A session that finds no texts."""

    max_answers = 2

    def trace(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return pieces


def test_calls_of_another_run_have_no_source() -> None:
    """Ids that no answer of the run had say nothing, and old ids are forgotten."""
    session = Session(closer=None)  # type: ignore[arg-type] # nothing is closed
    for number in range(3):
        session.answered(f"v{number}", "", [f"id{number}"])
    said = (Piece("text"),)
    assert session.trace_calls(said, ["of another"]) == said
    assert session.trace_calls(said, ["id0"]) == said
    assert session.trace_calls(said, ["id2"]) == (*said, Piece("", from_var="v2"))
    known = (Piece("text", from_var="v2"),)
    assert session.trace_calls(known, ["id2"]) == known
