"""Agents that must call a tool, because their answer is one, may call several tools in one turn."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from pydantic import BaseModel

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.recording import Recording

CHAT = "/v1/chat/completions"


class Report(BaseModel):
    """The answer."""

    warm: list[str]


def called(*calls: tuple[str, dict[str, Any]]) -> str:
    texts = (json.dumps({"name": name, "arguments": given}) for name, given in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


RULES = [
    ("Oslo: cold", called(("Report", {"warm": ["Rome"]}))),
    ("", called(("warmth", {"town": "Rome"}), ("warmth", {"town": "Oslo"}))),
]


def warmth(town: str) -> str:
    """How warm a town is."""
    return f"{town}: {'warm' if town == 'Rome' else 'cold'}"


@pytest.mark.parametrize("way", ["swapped", "accelerated"])
def test_two_tools_in_one_turn(way: str, recording: Recording) -> None:
    """Both run, and the second turn answers. The agent asks for calls, and not for one."""
    llm = ChatWeftline(base_url=recording.url, temperature=0)
    agent: Any = create_agent(llm, [warmth], response_format=ToolStrategy(Report))
    if way == "accelerated":
        agent = accelerate(agent)
    given = {"messages": [("user", "Which is warm?")]}
    made = agent.invoke(given, {"recursion_limit": 12})
    assert made["structured_response"] == Report(warm=["Rome"])
    found = [one.content for one in made["messages"] if one.type == "tool"]
    assert found[:2] == ["Rome: warm", "Oslo: cold"]
    bodies = recording.bodies(CHAT)
    assert [body["tool_choice"] for body in bodies] == ["required"] * 2
    assert all("parallel_tool_calls" not in body for body in bodies)
