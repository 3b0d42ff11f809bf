"""A turn of an agent behind a forced call, on a real engine: what the next turn computes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Server
from tests.waits import until
from weftline_engine import api

MOST_COMPUTED = 32  # tokens of the next turn beyond the tool's result
RESULT = "18 degrees, sunny, and a light wind from the west"
# Whatever the model thinks of it, this is its call.
_TEXT = {"type": "string", "enum": ["Rome, and after that the cities of the north of Italy"]}
_SCHEMA = {
    "type": "object",
    "properties": {"place": _TEXT},
    "required": ["place"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": _SCHEMA}}
_USER = {"role": "user", "content": "Is it warm in Rome, and in the north of Italy?"}


async def computed_behind_a_call(server: Server, engine: str) -> int:
    """The tokens that the turn behind a tool's result computes, less those of the result."""
    asked = {
        "model": "smollm2",
        "session_id": await server.session(),
        "tools": [_TOOL],
        "temperature": 0,
        "max_tokens": 100,
    }
    [member] = [one for one in server.driver.dispatcher.members if one.name == engine]
    assert member.engine is not None, "it has started"
    submit, ops = member.engine.submit, list[api.Op]()

    def recorded(op: api.Op) -> None:
        ops.append(op)
        submit(op)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member.engine, "submit", recorded)
        made = await _answer(server, {**asked, "messages": [_USER], "tool_choice": "required"})
        await until(lambda: len(ops) == 2 and not member.fills)
    assert ops[1].kind == api.Kind.FILL
    message = made["choices"][0]["message"]
    [call] = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
    usage = (await _answer(server, {**asked, "messages": [_USER, message, result]}))["usage"]
    body = {"model": "smollm2", "prompt": RESULT}
    new = (await server.http.post("/tokenize", json=body)).json()["count"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return int(usage["prompt_tokens"] - cached - new)


async def agent_turns(server: Server, turns: int, task: str) -> list[tuple[int, int]]:
    """The prompt tokens of an agent's turns, and how many of them were cached. Whatever the model
    writes, the next prompt has a call of the tool in its place, and the result."""
    rules = [f"Rule {i}: be brief, and do not repeat rule {i - 1}." for i in range(60)]
    system = {"role": "system", "content": "You plan trips. " + " ".join(rules)}
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": task}]
    session, found = await server.session(), list[tuple[int, int]]()
    body = {"model": "default", "session_id": session, "tools": [_TOOL], "max_tokens": 4}
    for turn in range(turns):
        usage = (await _answer(server, {**body, "messages": messages}))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        found.append((usage["prompt_tokens"], cached))
        name = f"call_{turn}"
        function = {"name": "weather", "arguments": '{"place": "Rome"}'}
        call = {"id": name, "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": name, "content": f"Day {turn}: {RESULT}"}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
    return found


async def _answer(server: Server, body: dict[str, Any]) -> Any:
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
