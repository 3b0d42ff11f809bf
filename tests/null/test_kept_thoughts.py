"""The server puts the thoughts back that a client drops from its own turns while tools run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.thinking_model import SCRIPT, TEMPLATE, TURNS, thought
from tests.null.asgi import Serve, Server
from tests.null.journal.test_restart import running
from tests.null.test_anthropic_messages import answered, events_of, rebuilt
from tests.null.test_openai_tools import chat, streamed
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_engine.services.tools.config import ToolsConfig
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig
from weftline_server.http.openai import kept_thoughts
from weftline_server.http.openai.requests import ChatMessage, ChatRequest
from weftline_server.http.state import state_of
from weftline_server.journal.kept_objects import KeptConfig

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


@pytest.mark.parametrize("names_a_session", [True, False])
async def test_the_next_run_of_the_server_puts_them_back(
    names_a_session: bool, tmp_path: Path
) -> None:
    """A client goes on with its loop after a restart, with a session on disk and without one."""
    body: dict[str, Any] = {"tools": [LOOK]}
    async with running(tmp_path / "store", SAYS) as server:
        if names_a_session:
            body["session_id"] = await server.session()
        made = (await chat(server, USER, **body))["choices"][0]["message"]
    [call] = made["tool_calls"]
    kept = {key: made[key] for key in ("role", "content", "tool_calls")}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "found"}
    async with running(tmp_path / "store", SAYS) as server:
        again = (await chat(server, USER, kept, result, **body))["choices"][0]["message"]
        assert again["reasoning_content"] == thought(2)
        [newest, *_] = (await server.http.get("/v1/sessions")).json()["sessions"]
        assert (await server.graph(newest["session_id"]))["calls"][-1]["restored_thoughts"] == 1


async def test_the_next_run_puts_them_back_in_messages(tmp_path: Path) -> None:
    """Those of a stream. A client of Anthropic's API sends the turn back without its block."""
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    async with running(tmp_path / "store", SAYS) as server:
        [thoughts, call] = rebuilt(await events_of(server, USER, tools=tools))[0]
    assert thoughts["thinking"] == thought(1)
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "found"}
    talk: list[dict[str, Any]] = [USER, {"role": "assistant", "content": [call]}]
    talk.append({"role": "user", "content": [result]})
    async with running(tmp_path / "store", SAYS) as server:
        made = await answered(server, *talk, tools=tools)
    assert made["content"][0]["thinking"] == thought(2)


async def test_no_client_reads_them_as_a_response(serve: Serve) -> None:
    """They are kept beside responses and conversations, and are neither."""
    server = await serve(SAYS)
    [call] = (await chat(server, USER, tools=[LOOK]))["choices"][0]["message"]["tool_calls"]
    id = kept_thoughts._id("null", call["id"])
    assert (await state_of(server.app).kept.find("local", id)) == {"thoughts": thought(1)}
    for path in (f"/v1/responses/{id}", f"/v1/conversations/{id}"):
        assert (await server.http.get(path)).status_code == 404
        assert (await server.http.delete(path)).status_code == 404
    body = {"input": "Go", "previous_response_id": id}
    assert (await server.http.post("/v1/responses", json=body)).status_code == 404


async def test_an_answer_does_not_fail_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thoughts are not kept, which the log says."""
    monkeypatch.setattr("weftline_server.journal.kept_objects.BUSY_S", 0.05)
    path = tmp_path / "store"
    async with running(path, SAYS) as server:
        with closing(sqlite3.connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            made = await chat(server, USER, tools=[LOOK])
    assert made["choices"][0]["message"]["reasoning_content"] == thought(1)
    assert "the thoughts of a turn are not kept: the server cannot use its store" in caplog.text


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


async def test_they_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a tenant by the objects that it may keep, and in a request by their characters. The
    newest stay."""
    server = await serve(SAYS, ServerConfig(kept=KeptConfig(max_objects=3)))
    kept = state_of(server.app).thoughts
    assert kept is not None

    async def put(tenant: str, id: str, thoughts: str) -> None:
        call = {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        await kept.keep(tenant, "m", {"reasoning_content": thoughts, "tool_calls": [call]})

    async def has(tenant: str, ids: str) -> list[str]:
        turns = [ToolCall(id=id, function=CalledFunction(name="f")) for id in ids]
        asked = ChatRequest(
            messages=tuple(ChatMessage(role="assistant", tool_calls=(one,)) for one in turns)
        )
        made, restored = await kept.restored(tenant, "m", asked)
        found = [one.reasoning_content or "" for one in made.messages]
        assert restored == sum(map(bool, found))
        return found

    for number in range(4):
        await put("a", str(number), f"{number}-")
    assert await has("a", "0123") == ["", "1-", "2-", "3-"]
    await put("b", "1", "x")
    assert (await has("a", "1"), await has("b", "1")) == (["1-"], ["x"])
    monkeypatch.setattr(kept_thoughts, "MOST_CHARS", 5)
    assert await has("a", "123") == ["", "2-", "3-"]
    assert await has("a", "1" * 9) == [""] * 7 + ["1-"] * 2
