"""The server puts the thoughts back that a client drops from its own turns while tools run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.thinking_model import SCRIPT, TEMPLATE, TURNS, thought
from tests.null.asgi import Serve, Server
from tests.null.journal.test_restart import running
from tests.null.test_openai_tools import chat, streamed
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_engine.services.tools.config import ToolsConfig
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig
from weftline_server.http.openai import kept_thoughts
from weftline_server.http.openai.kept_thoughts import KeptThoughts
from weftline_server.http.openai.requests import ChatMessage, ChatRequest

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SAYS = NullConfig(mode=NullMode.SCRIPT, script=SCRIPT)
USER = {"role": "user", "content": "Look."}


@pytest.fixture(autouse=True)
def _template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null, "CHAT_TEMPLATE", TEMPLATE)


async def loop(server: Server, **more: Any) -> tuple[str, list[int]]:
    """Run the tools of a client that keeps no thoughts. Returns the last answer, and in how many
    turns of each prompt the server has put thoughts back."""
    session = await server.session()
    messages: list[dict[str, Any]] = [USER]
    for _ in range(TURNS + 1):
        body = {"tools": [LOOK], "session_id": session, **more}
        [choice] = (await chat(server, *messages, **body))["choices"]
        made = choice["message"]
        if not made.get("tool_calls"):
            break
        kept = {key: made[key] for key in ("role", "content", "tool_calls")}
        [call] = made["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "found"}
        messages += [kept, result]
    calls = (await server.graph(session))["calls"]
    return made["content"], [call["restored_thoughts"] for call in calls]


async def test_ten_turns_keep_their_thoughts(serve: Serve) -> None:
    """The model goes on only if it reads the thoughts of its turn before. The graph says in how
    many turns they were put back."""
    server = await serve(SAYS)
    assert await loop(server) == ("Done.", list(range(TURNS)))


async def test_ten_turns_of_responses_keep_their_thoughts(serve: Serve) -> None:
    """A client that sends the items of each response back needs no help."""
    server = await serve(SAYS, ServerConfig(restore_thoughts=False))
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    items: list[dict[str, Any]] = [USER]
    for _ in range(TURNS):
        body = {"input": items, "tools": [tool]}
        made = (await server.http.post("/v1/responses", json=body)).json()["output"]
        items += made
        call = made[-1].get("call_id")
        items += [{"type": "function_call_output", "call_id": call, "output": "found"}] * bool(call)
    assert items[-1]["content"][0]["text"] == "Done."
    thoughts = [one["content"][0]["text"] for one in items if one.get("type") == "reasoning"]
    assert thoughts == [thought(number) for number in range(1, TURNS + 1)]


async def test_the_next_run_of_the_server_puts_them_back(tmp_path: Path) -> None:
    """Those of sessions on disk: a client goes on with its loop after a restart."""
    body: dict[str, Any] = {"tools": [LOOK]}
    async with running(tmp_path / "store", SAYS) as server:
        body["session_id"] = await server.session()
        made = (await chat(server, USER, **body))["choices"][0]["message"]
    [call] = made["tool_calls"]
    kept = {key: made[key] for key in ("role", "content", "tool_calls")}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "found"}
    async with running(tmp_path / "store", SAYS) as server:
        again = (await chat(server, USER, kept, result, **body))["choices"][0]["message"]
        assert again["reasoning_content"] == thought(2)
        [_, last] = (await server.graph(body["session_id"]))["calls"]
        assert last["restored_thoughts"] == 1


async def test_one_setting_leaves_them_out(serve: Serve) -> None:
    server = await serve(SAYS, ServerConfig(restore_thoughts=False))
    assert await loop(server) == ("The thoughts are missing.", [0, 0])


async def test_a_streamed_turn_and_a_response_are_kept_too(serve: Serve) -> None:
    """Whichever way the client asked, and whichever way it goes on."""
    server = await serve(SAYS)
    chunks = await streamed(server, USER, tools=[LOOK])
    parts = [one["choices"][0]["delta"].get("tool_calls") for one in chunks]
    [first] = [part[0] for part in parts if part and part[0].get("id")]
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    items = [
        USER,
        {"type": "function_call", "call_id": first["id"], "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": first["id"], "output": "found"},
    ]
    answer = await server.http.post("/v1/responses", json={"input": items, "tools": [tool]})
    thoughts, call = answer.json()["output"]
    assert thoughts["content"][0]["text"] == thought(2)
    said = {"id": call["call_id"], "type": "function", "function": {"name": "look"}}
    turns = [{"role": "assistant", "tool_calls": [said]}, {"role": "tool", "content": "found",
             "tool_call_id": call["call_id"]}]  # fmt: skip
    [choice] = (await chat(server, USER, *turns, tools=[LOOK]))["choices"]
    assert choice["message"]["reasoning_content"] == thought(3)


LOOKS = """
from weftline.toolkit import tool

@tool(effects="none")
def look(number: int) -> str:
    "Look."
    return "found"
"""


async def test_an_agents_turns_are_kept_too(serve: Serve, tmp_path: Path) -> None:
    """The server has run the tools of ten turns. The client sends back two of them without their
    thoughts, and the next agent goes on. Each of its prompts has both."""
    (tmp_path / "looks.py").write_text(LOOKS)
    tools = ToolsConfig(name="looks", module="looks", path=tmp_path)
    also = {"tool:looks": lambda: ToolEngine(tools, BegunCalls())}
    server = await serve(SAYS, ServerConfig(), None, also)
    session = await server.session()
    ours = {"weftline": {"run_tools": True, "session_id": session}}
    made = await chat(server, USER, **ours)
    assert made["choices"][0]["message"]["content"] == "Done."
    turns = made["weftline"]["messages"]
    assert len(turns) == 2 * TURNS - 2
    kept = [{key: one[key] for key in one if key != "reasoning_content"} for one in turns[:4]]
    again = await chat(server, USER, *kept, **ours)
    assert again["choices"][0]["message"]["content"] == "Done."
    calls = (await server.graph(session))["calls"]
    restored = [call["restored_thoughts"] for call in calls]
    assert restored == [0] * TURNS + [2] * (TURNS - 2)


async def test_others_thoughts_are_never_put_back(serve: Serve) -> None:
    """Those of another tenant or another model, of a turn that the server has not written, or where
    the client says that there are none."""
    keys = ServerConfig(keys={"a": "ann", "b": "bob"})
    other = NullConfig(mode=NullMode.SCRIPT, script=SCRIPT, model="other")
    server = await serve(SAYS, keys, None, {"other": lambda: NullEngine(other)})

    async def next_thought(key: str, id: str, model: str = "null", **more: Any) -> Any:
        said = {"id": id, "type": "function", "function": {"name": "look"}}
        turn = {"role": "assistant", "tool_calls": [said], **more}
        result = {"role": "tool", "tool_call_id": id, "content": "found"}
        body = {"messages": [USER, turn, result], "tools": [LOOK], "model": model}
        headers = {"Authorization": f"Bearer {key}"}
        answer = await server.http.post("/v1/chat/completions", json=body, headers=headers)
        message = answer.json()["choices"][0]["message"]
        return message.get("reasoning_content", message["content"])

    headers = {"Authorization": "Bearer a"}
    body = {"messages": [USER], "tools": [LOOK]}
    answer = await server.http.post("/v1/chat/completions", json=body, headers=headers)
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    id, missing = call["id"], "The thoughts are missing."
    assert await next_thought("a", id) == thought(2)
    assert await next_thought("b", id) == missing
    assert await next_thought("a", id, "other") == missing
    assert await next_thought("a", "call_1") == missing
    assert await next_thought("a", id, reasoning_content="") == missing
    assert await next_thought("a", id, reasoning=thought(4)) == thought(5)


def test_the_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tenants, and for each by turns and characters; the newest stay."""
    monkeypatch.setattr(kept_thoughts, "MOST_TENANTS", 2)
    monkeypatch.setattr(kept_thoughts, "MOST_TURNS", 3)
    monkeypatch.setattr(kept_thoughts, "MOST_CHARS", 10)
    kept = KeptThoughts()

    def put(tenant: str, id: str, thoughts: str) -> None:
        call = {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        kept.keep(tenant, "m", {"reasoning_content": thoughts, "tool_calls": [call]})

    def has(tenant: str, id: str) -> bool:
        call = ToolCall(id=id, function=CalledFunction(name="f"))
        turn = ChatMessage(role="assistant", tool_calls=(call,))
        return kept.restored(tenant, "m", ChatRequest(messages=(turn,)))[1] == 1

    for number in range(4):
        put("a", str(number), "ab")
    assert [has("a", str(number)) for number in range(4)] == [False, True, True, True]
    put("a", "long", "abcdefgh")
    assert [has("a", id) for id in ("1", "2", "3", "long")] == [False, False, True, True]
    put("b", "1", "x")
    put("c", "1", "x")
    assert (has("a", "long"), has("b", "1"), has("c", "1")) == (False, True, True)
