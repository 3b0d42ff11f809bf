"""Two agents on a KV cache that holds one of them, on the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from weftline.local import local_server

# Each agent has some 400 tokens at its end, and 0.9 of the cache may be filled.
KV_TOKENS = 432
WORDS = "The loom weaves threads of wool and silk into cloth on a quiet river at night. " * 9


def tool(number: int) -> dict[str, Any]:
    """A tool with one possible call."""
    schema: dict[str, Any] = {"type": "object", "properties": {"at": {"enum": [f"river {number}"]}}}
    schema |= {"required": ["at"], "additionalProperties": False}
    return {"type": "function", "function": {"name": "look", "parameters": schema}}


CHOICE = {"type": "function", "function": {"name": "look"}}


class Agent:
    """An agent of two turns in one session: a call that it must make, then an answer."""

    def __init__(self, http: httpx2.AsyncClient, number: int, session: str | None) -> None:
        self._http = http
        self.messages: list[dict[str, Any]] = [
            {"role": "user", "content": f"{number}. {WORDS} What is there?"}
        ]
        self._body: dict[str, Any] = {
            "model": "default",
            "tools": [tool(number)],
            "tool_choice": CHOICE,
            "temperature": 0,
            "max_tokens": 40,
        }
        if session is not None:
            self._body["session_id"] = session

    async def turn(self) -> dict[str, Any]:
        """The usage of one more turn, after which the tool has said something."""
        answer = await self._http.post(
            "/v1/chat/completions", json={**self._body, "messages": self.messages}
        )
        found = answer.raise_for_status().json()
        said = found["choices"][0]["message"]
        [called] = said["tool_calls"]
        result = {"role": "tool", "tool_call_id": called["id"], "content": "A heron and a boat."}
        self.messages += [said, result]
        return dict(found["usage"])


@pytest.fixture(scope="module")
def small_url(smollm2_directory: Path) -> Iterator[str]:
    """A server whose cache holds one agent, with room in host memory."""
    words = ("--kv-tokens", str(KV_TOKENS), "--host-kv-tokens", "4096")
    with local_server(str(smollm2_directory), *words) as url:
        yield url


async def test_a_context_waits_in_host_memory_while_its_tool_runs(
    small_url: str, model_url: str
) -> None:
    """The second agent waits for the room of the first, whose context is copied when it pauses.
    When the first goes on, its prompt is not computed again. Its calls are those of a server
    with room for both."""
    async with httpx2.AsyncClient(base_url=small_url, timeout=300) as http:
        opened = [(await http.post("/v1/session", json={})).json() for _ in range(2)]
        agents = [Agent(http, number, one["session_id"]) for number, one in enumerate(opened)]
        before = await asyncio.gather(*(agent.turn() for agent in agents))
        [engine] = (await http.get("/v1/engines")).json()["engines"]
        assert 0 < engine["pool"]["host"] <= engine["pool"]["host_size"] == 4096
        after = []
        for agent, one in zip(agents, opened, strict=True):
            after.append(await agent.turn())
            await http.delete(f"/v1/session/{one['session_id']}")  # its room is the other's
    cached = [one["prompt_tokens_details"]["cached_tokens"] for one in after]
    assert max(cached) >= before[0]["prompt_tokens"] - 16, "all but a part of a block"
    number = cached.index(max(cached))
    async with httpx2.AsyncClient(base_url=model_url, timeout=300) as http:
        alone = Agent(http, number, None)
        for _ in before, after:
            await alone.turn()
    said = [said_of(one) for one in agents[number].messages]
    assert said == [said_of(one) for one in alone.messages]


async def test_a_context_that_stayed_is_copied_when_another_agent_comes(small_url: str) -> None:
    """The first agent pauses alone, so its context stays where it is. The second one needs its
    room: the context is copied then, and the second agent's call is made during the pause. The
    first one goes on from the copy."""
    async with httpx2.AsyncClient(base_url=small_url, timeout=300) as http:

        async def copied() -> int:
            [engine] = (await http.get("/v1/engines")).json()["engines"]
            return int(engine["pool"]["host"])

        opened = [(await http.post("/v1/session", json={})).json() for _ in range(2)]
        first, second = (Agent(http, 7 + n, one["session_id"]) for n, one in enumerate(opened))
        before = await first.turn()
        assert await copied() == 0, "nobody needed its room"
        await second.turn()
        assert await copied() > 0
        await http.delete(f"/v1/session/{opened[1]['session_id']}")
        after = await first.turn()
        await http.delete(f"/v1/session/{opened[0]['session_id']}")
    cached = after["prompt_tokens_details"]["cached_tokens"]
    assert cached >= before["prompt_tokens"] - 16, "all but a part of a block"


def said_of(message: dict[str, Any]) -> Any:
    """What a message says, without the ids of its calls."""
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return message["role"], message["content"], calls
