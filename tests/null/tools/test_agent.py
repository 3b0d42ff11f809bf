"""`session.agent`: turns and tools run in the server, the client's own functions in the client."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve
from tests.null.steps.conftest import Listen, Socket, listen  # noqa: F401 - a fixture
from tests.null.test_resume import CutsStreams
from tests.null.tools.conftest import config
from tests.null.tools.test_tool_runs import PACE, called
from weftline import AsyncClient
from weftline.errors import InvalidRequest, UnknownModel
from weftline.toolkit import StreamingTool, tool
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls

SCRIPT = (
    ("LookupError: no such river", "There is none."),
    ("was given up", "It takes long."),
    ("is not JSON", "I cannot read it."),
    ("no JSON object", "I wrote it badly."),
    ("1230 km", "The Rhine has 1230 km, and 3."),
    ("sent to you", "It is sent."),
    ("#both", called("length", river="Rhine") + called("add", a=1, b=2)),
    ("#early", called("length", river="Rhine") + "and then " * 60),
    ("#send", called("send", to="you") + called("length", river="Rhine")),
    ("#mail", called("send", to="you")),
    ("#lost", called("length", river="Styx")),
    ("#slow", called("slow")),
    ("#strange", called("odd")),
    ("#twice", '<tool_call>\n{"name": "send", "arguments": {"to": 1, "to": 2}}\n</tool_call>'),
    ("#gone", called("wait")),
)


@tool(effects="none")
def length(river: str) -> str:
    """The length of a river."""
    if river != "Rhine":
        raise LookupError("no such river")
    return "1230 km"


@tool(effects="none", timeout_s=0.05)
async def slow() -> None:
    """Take long."""
    await asyncio.sleep(60)


def odd() -> object:
    return object()


def add(a: int, b: int) -> int:
    """A function with the name of a tool of the server."""
    return a + b


@pytest.fixture
async def served(listen: Listen) -> AsyncIterator[Socket]:  # noqa: F811
    begun = BegunCalls()
    engine = NullConfig(mode=NullMode.SCRIPT, script=SCRIPT, latency=PACE)
    yield await listen(engine, also={"tool:some": lambda: ToolEngine(config(), begun)})


async def test_an_agent_uses_tools_of_the_server_and_of_the_client(served: Socket) -> None:
    """The result has the text and the whole conversation. The graph has the agent, its two turns
    and a step for each call."""
    async with served.aclient() as client, client.session() as session:
        made = await session.agent("#both", tools=[length, "add"], system="Be brief.")
        graph = await session.graph()
    assert made.text == "The Rhine has 1230 km, and 3."
    assert made.finish_reason == "stop" and made.usage["completion_tokens"] > 10
    assert [one["role"] for one in made.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [one["content"] for one in made.messages[3:]] == ["1230 km", "3", made.text]
    names = [one["name"] for part in ("calls", "steps") for one in graph[part]]
    assert sorted(names) == ["add", "agent", "agent", "agent", "length"]


async def test_an_agent_streams(served: Socket) -> None:
    """All that the model says comes as it is generated. Then the result is there."""
    async with served.aclient() as client, client.session() as session:
        run = session.agent([{"role": "user", "content": "#early"}], tools=[length])
        texts = [text async for text in run.stream()]
        made = await run
    assert len(texts) > 10
    assert "".join(texts).endswith("The Rhine has 1230 km, and 3.")
    assert made.text == "The Rhine has 1230 km, and 3."


async def test_a_tool_without_effects_starts_while_the_model_writes(served: Socket) -> None:
    """The model has written less than its turn when the function runs. One with effects waits."""
    written = {"early": -1, "once": -1}
    texts: list[str] = []

    @tool(effects="none")
    async def length(river: str) -> str:
        written["early"] = len(texts)
        return "1230 km"

    @tool
    async def send(to: str) -> str:
        written["once"] = len(texts)
        return f"sent to {to}"

    async with served.aclient() as client, client.session() as session:
        run = session.agent("#early", tools=[length])
        async for text in run.stream():
            texts.append(text)
        assert 0 <= written["early"] < 100 < len(texts)
        texts.clear()
        made = await session.agent("#send", tools=[send, length])
    assert made.messages[1]["tool_calls"][0]["function"]["name"] == "send"
    assert made.messages[2]["content"] == "sent to you"


async def test_what_goes_wrong_in_a_tool_is_told_to_the_model(served: Socket) -> None:
    """An exception, a timeout, a result that is no JSON, bad arguments: the run goes on."""

    def send(to: str) -> str:
        raise AssertionError("its arguments were wrong")

    async with served.aclient() as client, client.session() as session:
        for prompt, own, said in (
            ("#lost", length, "There is none."),
            ("#slow", slow, "It takes long."),
            ("#strange", odd, "I cannot read it."),
            ("#twice", send, "I wrote it badly."),
        ):
            made = await session.agent(prompt, tools=[own])
            assert made.text == said


async def test_the_synchronous_client_runs_an_agent(served: Socket) -> None:
    """Functions run in threads. A coroutine function runs on a loop of its own."""
    threads: list[str] = []

    @tool(effects="none")
    def length(river: str) -> str:
        threads.append(threading.current_thread().name)
        return "1230 km"

    def work() -> tuple[str, list[str], str]:
        with served.client() as client, client.session() as session:
            run = session.agent("#both", tools=[length, "add"])
            texts = list(run.stream())
            slowly = session.agent("#slow", tools=[slow]).get()
            return run.get().text, texts, slowly.text

    text, texts, slowly = await asyncio.to_thread(work)
    assert text == "".join(texts) == "The Rhine has 1230 km, and 3."
    assert slowly == "It takes long."
    assert threads == ["weftline-length"]


async def test_a_conversation_goes_on_with_other_options(served: Socket) -> None:
    """The messages of a result are the prompt of the next run, with parts of text. A call that the
    request forces is written, and the limit of tokens in OpenAI's newer name ends the answer."""
    async with served.aclient() as client, client.session() as session:
        first = await session.agent("#both", tools=[length, "add"], temperature=0, stop="never")
        parts = [{"type": "text", "text": "Was it sent "}, {"type": "text", "text": "to you?"}]
        more = {"role": "user", "content": parts}
        asked = [*first.messages, more]
        third = await session.agent([more], tools=[length])
        second = await session.agent(
            asked,
            tools=[length],
            tool_choice={"type": "function", "function": {"name": "length"}},
            max_completion_tokens=2,
        )
    assert second.messages[: len(asked)] == asked
    assert (second.text.split(), second.finish_reason) == (["The", "Rhine"], "length")
    assert second.usage["completion_tokens"] == 2
    assert third.text == "It is sent."


async def test_a_run_goes_on_over_broken_connections(served: Socket) -> None:
    """The stream is cut again and again. The text comes once, and the result is whole."""
    whole = CutsStreams(served.server, [])
    cuts = CutsStreams(served.server, [1, 2, 3])
    made = []
    for transport in (whole, cuts):
        client = AsyncClient("http://t", transport=transport)
        async with client, client.session() as session:
            run = session.agent("It has 1230 km?", tools=[length])
            text = "".join([part async for part in run.stream()])
            made.append((text, (await run).messages))
    assert made[0] == made[1] and made[0][0] == "The Rhine has 1230 km, and 3."
    assert (len(whole.asked), len(cuts.asked)) == (1, 4)


async def test_a_watch_of_an_agent_is_on_the_wire(serve: Serve) -> None:
    """A step with `client_tools`: the texts of its turns, the call that is due, and at the end the
    conversation. The agent cannot stand in a body, where no client is asked."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=SCRIPT))
    session = await server.session()
    step = {
        "kind": "agent",
        "out": "a",
        "call": {
            "name": "ask",
            "prompt": [
                {"role": "user", "content": [{"text": "#mail"}]},
                {"role": "assistant", "content": [{"output": "answer"}]},
            ],
            "placeholders": [{"name": "answer", "in_out": "out"}],
            "tools": [{"type": "function", "function": {"name": "send"}}],
        },
        "client_tools": [{"name": "send"}],
    }
    body = {"session_id": session, "steps": [step], "watch": ["a"], "parts": True}
    reading = asyncio.create_task(server.http.post("/v1/submit", json=body))
    while not (steps := due(server, session)):  # noqa: ASYNC110 - no event marks it
        await asyncio.sleep(0)
    [variable] = steps
    path = f"/v1/session/{session}/variable/{variable}"
    answer = await server.http.put(path, json={"value": "sent to you"})
    assert answer.status_code == 200, answer.text
    events = [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for said in (await reading).text.strip().split("\n\n")
        for kind, data in [[line for line in said.split("\n") if line[:3] != "id:"]]
    ]
    call = {"id": events[1][1]["call"]["id"], "name": "send", "arguments": '{"to": "you"}'}
    assert events[1] == ("due", {"semantic_var_id": variable, "agent": "a", "call": call})
    said = "".join(data["text"] for kind, data in events if kind == "part")
    ended = events[-1][1]
    assert (said, ended["value"], ended["finish_reason"]) == ("It is sent.",) * 2 + ("stop",)
    assert [one["role"] for one in ended["messages"]] == ["assistant", "tool", "assistant"]
    assert ended["messages"][1]["content"] == "sent to you"
    assert {kind for kind, _ in events} == {"submitted", "due", "part", "value"}
    each = {"kind": "each", "over": {"value": [1]}, "body": {"steps": [step]}}
    refused = await server.http.post(
        "/v1/submit", json={"steps": [{**each, "collect": {"a": "b"}}]}
    )
    assert refused.status_code == 400 and "an agent with client_tools" in refused.text
    strange = {**step, "client_tools": [{"name": "mine"}]}
    refused = await server.http.post("/v1/submit", json={"steps": [strange]})
    assert refused.status_code == 400 and "'mine', which is not among the tools" in refused.text


async def test_a_run_that_is_given_up_ends_its_tools(served: Socket, tmp_path: Path) -> None:
    """The client leaves in the middle of its own tool: its coroutine is cancelled, and the session
    goes on."""
    began, ended = asyncio.Event(), asyncio.Event()

    @tool(timeout_s=60)
    async def wait() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "waited"

    async with served.aclient() as client, client.session() as session:
        run = asyncio.ensure_future(session.agent("#gone", tools=[wait]).get())
        await began.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert ended.is_set()
        made = await session.agent("#both", tools=[length, "add"])
    assert made.text == "The Rhine has 1230 km, and 3."


async def test_a_call_of_the_client_is_on_the_wire(serve: Serve) -> None:
    """The stream names the call and its variable, which the client sets. A second result is
    refused: a call starts once."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=SCRIPT))
    session = await server.session()
    mine = {"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}
    body = {
        "messages": [{"role": "user", "content": "#mail"}],
        "tools": [mine],
        "stream": True,
        "weftline": {
            "session_id": session,
            "run_tools": True,
            "client_tools": [{"name": "send", "effects": "once"}],
        },
    }
    reading = asyncio.create_task(server.http.post("/v1/chat/completions", json=body))
    await asyncio.sleep(0)
    while not (steps := due(server, session)):  # noqa: ASYNC110 - no event marks it
        await asyncio.sleep(0)
    [variable] = steps
    path = f"/v1/session/{session}/variable/{variable}"
    for status in (200, 409):
        answer = await server.http.put(path, json={"value": "sent to you"})
        assert answer.status_code == status, answer.text
    said = (await reading).text
    calls = [json.loads(one[6:])["weftline"] for one in said.split("\n\n") if '"tool_call":' in one]
    assert [one["tool_call"]["variable"] for one in calls] == [variable]
    assert calls[0]["tool_call"]["arguments"] == '{"to": "you"}'
    assert "sent." in said


def due(server: Any, session: str) -> list[str]:
    """The variables of the client's calls that have begun."""
    found = server.driver.registry.find("local", session)
    return [
        run.task.task.primitives[0].writes[0]
        for run in found.primitives.values()
        if run.task.task.name == "send"
    ]


async def test_what_is_not_served_is_refused(serve: Serve, served: Socket) -> None:
    """Each error names what to do."""
    mine = {"type": "function", "function": {"name": "mine"}}
    session_id = await served.server.session()
    for more, said in (
        ({"stream": False}, "client_tools need a stream"),
        ({"tools": []}, "'mine', which is not among the tools"),
        ({"own": [{"name": "add"}]}, "'add', which the server runs"),
        ({"own": [{"name": "mine", "effects": "twice"}]}, "effects"),
        ({"own": [{"name": "mine", "lease_s": 0}]}, "lease_s must be above 0"),
        ({"own": [{"name": "add"}], "session_id": "s"}, "'add', which the server runs"),
        ({"run_tools": False}, "client_tools go with run_tools"),
    ):
        given: dict[str, Any] = dict(more)
        ours = {
            "run_tools": given.pop("run_tools", True),
            "client_tools": given.pop("own", [{"name": "mine"}]),
        }
        if given.pop("session_id", None):
            ours["session_id"] = session_id
        body = {"messages": [{"role": "user", "content": "x"}], "tools": [mine], "stream": True}
        answer = await served.server.http.post(
            "/v1/chat/completions", json={**body, **given, "weftline": ours}
        )
        assert answer.status_code in (400, 422), answer.text
        assert said in answer.text
    async with served.aclient() as client, client.session() as session:
        with pytest.raises(TypeError, match="a tool is a function"):
            session.agent("x", tools=[StreamingTool])
        for option in ("response_format", "n", "logprobs"):
            with pytest.raises(InvalidRequest, match=f"no option '{option}': give a field of Samp"):
                session.agent("x", tools=[length], **dict[str, Any]({option: 1}))
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        with pytest.raises(InvalidRequest, match="content that is not text"):
            await session.agent([image], tools=[length])
        with pytest.raises(InvalidRequest, match="client_tools names 'add', which the server runs"):
            await session.agent("x", tools=[add])
        with pytest.raises(UnknownModel):
            await session.agent("x", tools=[length], model="nobody")
