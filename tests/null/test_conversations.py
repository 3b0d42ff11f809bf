"""The sessions of OpenAI clients that name none: by header, or by a conversation that grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.test_openai_tools import CALL, WEATHER
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.http.openai.conversations import Conversations
from weftline_server.schedule.memory.applications import Application

SYSTEM = {"role": "system", "content": "You are an agent."}


async def chat(server: Server, *texts: str, headers: Any = None, **more: Any) -> str:
    """Send a chat of a system message, and of a user and an assistant in turn."""
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    body = {"messages": [SYSTEM, *said], **more}
    answer = await server.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def sizes(server: Server, headers: Any = None) -> list[int]:
    """The numbers of calls of the tenant's open sessions."""
    found = (await server.http.get("/v1/sessions", headers=headers)).json()["sessions"]
    return sorted(one["calls"] for one in found if one["state"] == "open")


def applications(server: Server) -> list[Application]:
    """The sessions as the scheduler sees them."""
    return list(server.driver.dispatcher.memory._applications)


async def test_a_conversation_that_grows_becomes_a_session(serve: Serve) -> None:
    """Requests that begin with a first one share a session. Two agents have the same first request,
    so that nobody knows whose it was: each gets a session of its own from the second on.
    """
    server = await serve()
    texts: dict[str, list[str]] = {"a": ["task"], "b": ["task"]}
    for turn in range(4):
        for name, said in texts.items():
            answer = await chat(server, *said)
            said += [answer, f"result {turn} of {name}"]
    assert await sizes(server) == [1, 3, 3]
    await chat(server, "something else")
    assert await sizes(server) == [1, 1, 3, 3]


async def test_single_requests_of_a_new_tenant_run_outside_soon(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that all begin at once are admitted as such. Here none goes on. Each has a session
    until that is known, and after four of them none has one.
    """
    server = await serve()
    for number in range(6):
        await chat(server, f"at once {number}")
    assert await sizes(server) == [1] * 6
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", -1.0)
    await chat(server, "later")
    assert await sizes(server) == []
    await chat(server, "and later")
    assert await sizes(server) == []


async def test_a_conversation_that_does_not_go_on_leaves_no_session(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is closed a while after its answer, though no other request comes. The look that
    closes it waits here until the session has been seen.
    """
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", 0.01)
    look, seen = Conversations._look_again, asyncio.Event()

    def look_once_seen(found: Conversations, habit: Any) -> None:
        if seen.is_set():
            look(found, habit)
        else:
            asyncio.get_running_loop().call_later(0.01, look_once_seen, found, habit)

    monkeypatch.setattr(Conversations, "_look_again", look_once_seen)
    server = await serve()
    await chat(server, "the only one")
    assert await sizes(server) == [1]
    seen.set()
    while await sizes(server):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.005)


async def test_a_first_request_has_a_session_where_most_conversations_go_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four agents have gone on, so that the fifth is admitted as one from its first request. Then
    come chats of a single request. When they are most, their requests run outside sessions again.
    """
    server = await serve()
    for agent in range(4):
        answer = await chat(server, f"task {agent}")
        await chat(server, f"task {agent}", answer, "result")
    assert await sizes(server) == [2] * 4
    answer = await chat(server, "task 4")
    assert await sizes(server) == [1, *[2] * 4]
    await chat(server, "task 4", answer, "result")
    assert await sizes(server) == [2] * 5
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", -1.0)
    for number in range(8):  # 5 of 5 went on, then 5 of 6, ... and 5 of 11 after the sixth
        await chat(server, f"question {number}")
    assert await sizes(server) == [1] * 5 + [2] * 5


async def test_conversations_that_begin_at_once_do_not_speak_against_each_other(
    serve: Serve,
) -> None:
    """Four agents have gone on. None of twelve others could go on before the last of them began, so
    each of them is a session from its first request on."""
    server = await serve()
    for agent in range(4):
        answer = await chat(server, f"task {agent}")
        await chat(server, f"task {agent}", answer, "result")
    for agent in range(12):
        await chat(server, f"another task {agent}")
    assert await sizes(server) == [1] * 12 + [2] * 4


async def test_an_answer_that_calls_none_of_its_tools_may_be_the_last(serve: Serve) -> None:
    """An agent's loop ends with such an answer. Where no tools were offered, an answer says nothing
    about that."""
    script = ("<tool_response>", "It is sunny."), ("", CALL)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    user = {"role": "user", "content": "How is the weather?"}
    body = {"messages": [user], "tools": [WEATHER]}
    asked = (await server.http.post("/v1/chat/completions", json=body)).json()
    [one] = applications(server)
    assert one.newest.end_unknown and not one.has_likely_ended
    message = asked["choices"][0]["message"]
    answers = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    body["messages"] = [user, message, answers]
    told = (await server.http.post("/v1/chat/completions", json=body)).json()
    assert told["choices"][0]["message"]["content"] == "It is sunny."
    assert one.has_likely_ended
    await chat(server, "another one, without tools")
    assert [other.has_likely_ended for other in applications(server)] == [True, False]


async def test_two_conversations_that_begin_alike_are_not_mixed(serve: Serve) -> None:
    """A second one with the same first request says that nobody knows which of them goes on."""
    server = await serve()
    for agent in range(4):
        answer = await chat(server, f"task {agent}")
        await chat(server, f"task {agent}", answer, "result")
    answer = await chat(server, "task")
    assert await chat(server, "task") == answer
    assert await sizes(server) == [1, *[2] * 4]  # the second one runs outside
    for name in ("a", "b"):
        await chat(server, "task", answer, f"result of {name}")
    assert await sizes(server) == [1] * 3 + [2] * 4


async def test_a_header_names_the_session_from_the_first_request_on(serve: Serve) -> None:
    """Requests with the same session header are in one session."""
    server = await serve()
    for header in ("X-Session-ID", "x-dynamo-session-id"):
        for text in ("one", "two"):
            await chat(server, text, headers={header: f"mine {header}"})
    body = {"prompt": "three"}
    await server.http.post("/v1/completions", json=body, headers={"X-Session-ID": "text"})
    assert await sizes(server) == [1, 2, 2]


async def test_no_conversation_crosses_tenants_users_or_keys(serve: Serve) -> None:
    """Requests that would continue each other belong to no session together."""
    config = ServerConfig(keys={"k1": "one", "k2": "two"})
    server = await serve(NullConfig(), config)
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("k1", "k2"))
    grown = ("task", "answer", "more")
    await chat(server, "task", headers=one)
    await chat(server, *grown, headers=two)
    await chat(server, *grown, headers=one, user="u1")
    await chat(server, *grown, headers=one, prompt_cache_key="p1")
    assert (await sizes(server, one), await sizes(server, two)) == ([1] * 3, [1])
    await chat(server, *grown, "answer", "x", headers=one, user="u1")
    await chat(server, "n", headers={**two, "X-Session-ID": "s"})
    await chat(server, "n", headers={**one, "X-Session-ID": "s"})
    assert (await sizes(server, one), await sizes(server, two)) == ([1, 1, 1, 2], [1, 1])


async def test_the_guess_can_be_left_out(serve: Serve) -> None:
    """With the switch, no session is found for requests that name none."""
    server = await serve(NullConfig(), ServerConfig(without=frozenset({"conversations"})))
    await chat(server, "task", headers={"X-Session-ID": "s"})
    await chat(server, "task", "answer", "more", headers={"X-Session-ID": "s"})
    assert await sizes(server) == []
