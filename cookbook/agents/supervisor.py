"""A supervisor with three agents: a planner, a writer and a critic. Each agent is one of its tools.

    weftline serve qwen3:1.7b-q4 &
    python cookbook/agents/supervisor.py "Write three sentences about looms."

The supervisor chooses whom it asks and in which order. Agents that it asks in one turn run beside
each other. The model has to be able to call tools. `WEFTLINE_BASE_URL` names another server.
"""

from __future__ import annotations

import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import BaseTool, StructuredTool

from langchain_weftline import ChatWeftline, accelerate

TASK = "Write three sentences about looms."
SUPERVISOR = (
    "You lead a planner, a writer and a critic. Ask them with your tools, and tell each all that "
    "it needs. Ask the critic about each text. Answer with the last text alone."
)
# An agent's name, what the supervisor is told of it, and what the agent is told.
AGENTS = (
    ("planner", "Says what a text should contain.", "List the points of the text, one a line."),
    ("writer", "Writes a text from points.", "Write the text. Use all points."),
    ("critic", "Says what is wrong with a text.", "Name the worst fault, or say GOOD."),
)


def length(text: str) -> str:
    """How many words a text has."""
    return f"{len(text.split())} words"


def asked(agent: Any, task: str) -> str:
    """The agent's last message."""
    return str(agent.invoke({"messages": [("user", task)]})["messages"][-1].text)


def tool_of(name: str, description: str, prompt: str) -> BaseTool:
    """An agent as a tool. The critic has a tool of its own."""
    tools = [length] if name == "critic" else []
    llm = ChatWeftline(temperature=0, max_tokens=300)
    agent = accelerate(create_agent(llm, tools, system_prompt=prompt, name=name))

    def ask(task: str) -> str:
        return asked(agent, task)

    return StructuredTool.from_function(ask, name=name, description=description)


def supervisor() -> Any:
    """The agent that leads. `accelerate` keeps its turns, and what is in them, in one session."""
    llm = ChatWeftline(temperature=0, max_tokens=400)
    tools = [tool_of(*one) for one in AGENTS]
    return accelerate(create_agent(llm, tools, system_prompt=SUPERVISOR, name="supervisor"))


def main() -> None:
    given = {"messages": [("user", " ".join(sys.argv[1:]) or TASK)]}
    for message in supervisor().invoke(given, {"recursion_limit": 25})["messages"][1:]:
        for call in getattr(message, "tool_calls", []):
            print(f"supervisor asks {call['name']}: {call['args'].get('task')}")
        if message.type == "tool":
            print(f"{message.name} answers: {message.text}")
        elif message.text:
            print(f"supervisor: {message.text}")


if __name__ == "__main__":
    main()
