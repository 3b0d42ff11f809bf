"""Agents of LangChain 1 with its middleware, as graphs with the requests that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.integrations.graph_table import called, graph, search

RULES = [
    ("Context Extraction Assistant", "They asked for the river of Rome."),
    ("Updated todo list", "Both steps are planned now."),
    ("Make a plan", called("write_todos", todos=[{"content": "dig", "status": "pending"}])),
    ("Never end", called("search", query="rivers of Rome")),
    ("Say it again", "The river is still the Tiber."),
]

ASKED: Any = {"messages": [HumanMessage("Which river?")]}
AGAIN: Any = {"messages": [HumanMessage("Say it again")]}
ENDLESS: Any = {"messages": [HumanMessage("Never end")]}
APPROVED: Any = Command(resume={"decisions": [{"type": "approve"}]})


@graph(AGAIN, 3, 3, 2, then=(AGAIN,))
def summarization(llm: Any) -> Any:
    """The second turn begins with a summary of the first one."""
    summary = SummarizationMiddleware(llm, trigger=("messages", 2), keep=("messages", 1))
    return create_agent(llm, [], middleware=[summary], checkpointer=InMemorySaver())


@graph(ASKED, 2, 2, 1, then=(APPROVED,))
def human_in_the_loop(llm: Any) -> Any:
    """A person approves the tool's call."""
    asking = HumanInTheLoopMiddleware({"search": True})
    return create_agent(llm, [search], middleware=[asking], checkpointer=InMemorySaver())


@graph(ASKED, 4, 4, 1, refused=2)
def model_fallback(llm: Any) -> Any:
    """The server does not know the first model."""
    nobody = llm.model_copy(update={"model_name": "nobody"})
    return create_agent(nobody, [search], middleware=[ModelFallbackMiddleware(llm)])


@graph(ASKED, 2, 2, 1)
def tool_retry(llm: Any) -> Any:
    """A tool fails once."""
    failed: list[str] = []

    def search(query: str) -> str:
        """Search."""
        if not failed:
            failed.append(query)
            raise ConnectionError("not yet")
        return "Found the Tiber"

    again = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    return create_agent(llm, [search], middleware=[again])


@graph(ENDLESS, 3, 3, 3)
def model_call_limit(llm: Any) -> Any:
    """An agent that never ends is ended."""
    return create_agent(llm, [find], middleware=[ModelCallLimitMiddleware(run_limit=3)])


@graph(ENDLESS, 2, 2, 1)
def tool_call_limit(llm: Any) -> Any:
    """The second call of the tool ends the agent."""
    limit = ToolCallLimitMiddleware(run_limit=1, exit_behavior="end")
    return create_agent(llm, [find], middleware=[limit])


@graph({"messages": [HumanMessage("Which river? I am ada@example.org.")]}, 2, 2, 1)
def personal_data(llm: Any) -> Any:
    """An address is taken out of the question."""
    return create_agent(llm, [search], middleware=[PIIMiddleware("email", strategy="redact")])


@graph({"messages": [HumanMessage("Make a plan")]}, 2, 2, 1)
def todo_list(llm: Any) -> Any:
    """The agent plans with the middleware's tool."""
    return create_agent(llm, [search], middleware=[TodoListMiddleware()])


@graph(ENDLESS, 3, 3, 3)
def context_editing(llm: Any) -> Any:
    """Results of older tool calls are cleared from the prompt."""
    edit = ClearToolUsesEdit(trigger=1, keep=1)
    editing, limit = ContextEditingMiddleware(edits=[edit]), ModelCallLimitMiddleware(run_limit=3)
    return create_agent(llm, [find], middleware=[editing, limit])


@graph(ASKED, 2, 2, 1)
def prompt_of_the_state(llm: Any) -> Any:
    """The system message counts the messages."""

    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"You have read {len(request.messages)} messages."

    return create_agent(llm, [search], middleware=[prompt])


@graph(ASKED, 2, 2, 1)
def hooks_before_and_after(llm: Any) -> Any:
    """Functions around the agent and around each model call add to the messages."""

    @before_agent
    def begin(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [HumanMessage("Be brief.")]}

    @before_model
    def before(state: Any, runtime: Any) -> dict[str, Any] | None:
        return None

    @after_model
    def after(state: Any, runtime: Any) -> dict[str, Any] | None:
        last = state["messages"][-1]
        return None if last.tool_calls else {"messages": [HumanMessage("Thanks.")]}

    @after_agent
    def end(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}

    return create_agent(llm, [search], middleware=[begin, before, after, end])


@graph(ASKED, 4, 4, 2, is_sync=True)
def wrapped_calls(llm: Any) -> Any:
    """A hook asks the model twice for each answer, and another one changes the tool's result."""

    @wrap_model_call
    def twice(request: Any, handler: Callable[[Any], Any]) -> Any:
        handler(request)
        return handler(request)

    @wrap_tool_call
    def louder(request: Any, handler: Callable[[Any], Any]) -> Any:
        result = handler(request)
        return ToolMessage(f"{result.content}!", tool_call_id=result.tool_call_id, name=result.name)

    return create_agent(llm, [search], middleware=[twice, louder])


def find(query: str) -> str:
    """Search."""
    return "Nothing was found"


find.__name__ = "search"
