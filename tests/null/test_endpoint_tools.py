"""The tools of a chat reach an endpoint in its own fields, or in words where it takes none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.null.endpoints import Behaviour, Endpoint, refuses, streams
from tests.null.test_endpoint_answers import CALLS, call, delta, whole
from tests.null.test_openai_faults import config
from tests.null.test_openai_tools import USER, WEATHER
from weftline_engine import api
from weftline_engine.remote.openai.endpoint_settings import ToolSupport
from weftline_engine.remote.openai.engine import OpenAIEngine
from weftline_engine.transport import wire
from weftline_server.app import create_app
from weftline_server.config import ServerConfig

NAMED = {"type": "function", "function": {"name": "get_weather"}}
TIME = {"type": "function", "function": {"name": "get_time", "strict": True}}
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


def asked(id: str, arguments: str = '{"city":"Rome"}') -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {**USER, "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": [asked("a"), asked("b", "{}")]},
    {"role": "tool", "tool_call_id": "a", "content": "warm"},
    {"role": "tool", "tool_call_id": "b", "content": "cold"},
    {"role": "assistant", "content": "Warm.", "tool_calls": [asked("c")]},
    {"role": "tool", "tool_call_id": "c", "content": "warm"},
    USER,
]


@asynccontextmanager
async def serving(
    path: Path, *behaviours: Behaviour, tools: ToolSupport = ToolSupport.AUTO
) -> AsyncIterator[tuple[httpx2.AsyncClient, Endpoint]]:
    endpoint = Endpoint(*behaviours)
    async with endpoint.on(path / "e") as socket:
        made = config(socket, endpoint_tools=tools)
        app = create_app(ServerConfig(), {"far": lambda: OpenAIEngine(made)})
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://t") as http:
                yield http, endpoint


async def sent(path: Path, **body: Any) -> dict[str, Any]:
    """What an endpoint gets for a chat with this body."""
    async with serving(path, streams("Fine.")) as (http, endpoint):
        answer = await http.post("/v1/chat/completions", json={"messages": [USER], **body})
        assert answer.status_code == 200, answer.text
    [request] = endpoint.requests
    return request


@pytest.mark.parametrize("choice", [None, "auto", "none", "required", NAMED], ids=str)
@pytest.mark.parametrize("parallel", [None, True, False])
async def test_tools_and_wishes_are_fields(tmp_path: Path, choice: Any, parallel: Any) -> None:
    """They are as the client has sent them, and an unset one stays unset."""
    body = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": parallel}
    body = {name: value for name, value in body.items() if value is not None}
    request = await sent(tmp_path, **body)
    assert {name: request[name] for name in FIELDS if name in request} == body
    assert request["messages"] == [USER]
    assert "response_format" not in request


async def test_earlier_calls_and_results_are_messages(tmp_path: Path) -> None:
    """With the client's ids, names and texts, also where the chat offers no tools any more."""
    for more in ({"tools": [WEATHER]}, {}):
        assert (await sent(tmp_path, messages=HISTORY, **more))["messages"] == HISTORY


async def test_a_form_beside_tools_holds_the_text_alone(tmp_path: Path) -> None:
    """The endpoint's own API says what a form beside tools means. It was a 400."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": FORM}}
    request = await sent(tmp_path, tools=[WEATHER], response_format=form)
    assert request["tools"] == [WEATHER]
    assert request["response_format"]["json_schema"]["schema"]["properties"] == FORM["properties"]


async def test_a_grammar_is_refused(tmp_path: Path) -> None:
    """No field of the endpoint's holds the text of a call to it. A pattern is part of a schema."""
    tool = {"type": "custom", "name": "patch"}
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    regex = {"type": "grammar", "syntax": "regex", "definition": "a+"}
    async with serving(tmp_path, streams("Fine.")) as (http, endpoint):
        body = {"input": "x", "tools": [{**tool, "format": lark}]}
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 400 and "cannot hold" in answer.text
        body = {"input": "x", "tools": [{**tool, "format": regex}]}
        assert (await http.post("/v1/responses", json=body)).status_code == 200
    [request] = endpoint.requests
    function = request["tools"][0]["function"]
    assert function["strict"] is True
    assert function["parameters"]["properties"]["input"]["pattern"] == "^(?:a+)$"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_forced_tool_may_be_called_twice(tmp_path: Path, stream: bool) -> None:
    """The endpoint has made as many calls as it was asked for."""
    twice = (call('{"city": "Rome"}', "get_weather"), call("{}", "get_weather", 1), delta("stop"))
    body = {"messages": [USER], "tools": [WEATHER], "tool_choice": "required", "stream": stream}
    async with serving(tmp_path, streams(*twice)) as (http, _):
        answer = await http.post("/v1/chat/completions", json=body)
    if not stream:
        made = answer.json()["choices"][0]["message"]["tool_calls"]
    else:
        lines = [line[6:] for line in answer.text.splitlines() if "data: {" in line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
        made = [one for found in deltas for one in found.get("tool_calls", ()) if "id" in one]
    assert [one["function"]["name"] for one in made] == ["get_weather", "get_weather"]


async def test_an_endpoint_without_tools_gets_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A small request tells that it is the tools. From then on they are text, and the log says so
    once."""
    no = refuses(400, "m does not support tools")
    async with serving(tmp_path, no, no, streams('{"city": "Oslo"}')) as (http, endpoint):
        for _ in range(2):
            choice = await whole(http, messages=HISTORY, tools=[WEATHER], tool_choice=NAMED)
            [made] = choice["message"]["tool_calls"]
            assert made["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    native, probe, first, second = endpoint.requests
    assert native["tools"] == [WEATHER] and native["messages"] == HISTORY
    assert probe["tools"][0]["function"]["name"] == "probe" and probe["max_tokens"] == 1
    assert first == second and not set(FIELDS) & set(first)
    assert {one["role"] for one in first["messages"]} == {"system", "user", "assistant"}
    assert '{"name": "get_weather"' in first["messages"][0]["content"]
    assert "<tool_response>\nwarm\n</tool_response>" in first["messages"][3]["content"]
    # A forced call is held by the form of its arguments, as without tools.
    schema = first["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["city"]
    said = [one.message for one in caplog.records if "takes no tools" in one.message]
    assert len(said) == 1 and "does not support tools" in said[0]


async def test_chats_at_once_learn_it_together(tmp_path: Path) -> None:
    """Each is answered in words, whichever was refused first."""

    async def without_tools(writer: Any, request: dict[str, Any]) -> None:
        behave = refuses(400, "no tools") if "tools" in request else streams("Fine.")
        await behave(writer, request)

    async with serving(tmp_path, without_tools) as (http, endpoint):
        made = await asyncio.gather(*(whole(http, tools=[WEATHER]) for _ in range(8)))
        assert [one["message"]["content"] for one in made] == ["Fine."] * 8
        count = len(endpoint.requests)
        await whole(http, tools=[WEATHER])
        assert len(endpoint.requests) == count + 1


async def test_a_fault_of_a_tool_is_told(tmp_path: Path) -> None:
    """An endpoint with tools refuses one schema: the client learns it, and tools stay native."""
    bad, good = refuses(400, "invalid schema for function"), streams("Fine.")
    async with serving(tmp_path, bad, reply_once, bad, good) as (http, endpoint):
        for _ in range(2):
            body = {"messages": [USER], "tools": [WEATHER]}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert "invalid schema for function" in answer.json()["error"]["message"]
        assert (await whole(http, tools=[WEATHER]))["message"]["content"] == "Fine."
    assert [len(one["tools"]) for one in endpoint.requests] == [1, 1, 1, 1]


async def test_a_refused_chat_is_no_news_of_tools(tmp_path: Path) -> None:
    """An endpoint that refuses everything teaches nothing: the next chat offers fields again."""
    no = refuses(400, "no such parameter: max_tokens")
    async with serving(tmp_path, no, no, no, streams("Fine.")) as (http, endpoint):
        body = {"messages": [USER], "tools": [WEATHER]}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 400
        await whole(http, tools=[WEATHER])
    assert ["tools" in one for one in endpoint.requests] == [True, True, False, True]


async def test_a_forced_call_is_no_news_of_free_ones(tmp_path: Path) -> None:
    """vLLM without a tool parser takes forced calls and refuses free ones."""
    no = refuses(400, '"auto" tool choice requires --enable-auto-tool-choice')
    yes = streams("Fine.")
    async with serving(tmp_path, yes, no, no, yes) as (http, endpoint):
        await whole(http, tools=[WEATHER], tool_choice="required")
        await whole(http, tools=[WEATHER])
    assert ["tools" in one for one in endpoint.requests] == [True, True, True, False]


@pytest.mark.parametrize("way", [ToolSupport.NATIVE, ToolSupport.TEXT])
async def test_a_set_way_is_kept(tmp_path: Path, way: ToolSupport) -> None:
    """`native` tries no words, and `text` no fields."""
    no = refuses(400, "m does not support tools")
    async with serving(tmp_path, no, tools=way) as (http, endpoint):
        body = {"messages": [USER], "tools": [WEATHER]}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 400
    [request] = endpoint.requests
    assert ("tools" in request) == (way is ToolSupport.NATIVE)


async def test_calls_of_an_endpoint_go_back_to_it(tmp_path: Path) -> None:
    """With their thoughts left out, as messages."""
    async with serving(tmp_path, streams(*CALLS)) as (http, endpoint):
        message = (await whole(http, tools=[WEATHER]))["message"]
        results = [
            {"role": "tool", "tool_call_id": one["id"], "content": "warm"}
            for one in message["tool_calls"]
        ]
        endpoint.behaviours = [streams("Warm.")]
        await whole(http, messages=[USER, message, *results], tools=[WEATHER])
    told = endpoint.requests[-1]["messages"]
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "tool", "tool"]
    assert told[1]["tool_calls"] == message["tool_calls"]
    assert told[1]["content"] == "Let me see." and told[2:] == results


def test_the_tools_of_an_op_go_over_the_wire() -> None:
    """An endpoint's engine may run on another machine."""
    chat = api.Chat(
        messages=tuple(HISTORY),
        tools=(WEATHER,),
        choice=NAMED,
        parallel=False,
        words=(USER,),
        constraint="{}",
    )
    op = api.Op(id="a", kind="generate", context="a", chat=chat)
    [back] = wire.decode(wire.encode([wire.Submit(op)])[wire.HEADER_BYTES :])
    assert back == wire.Submit(op)


async def reply_once(writer: Any, request: dict[str, Any]) -> None:
    """The answer to a request that is not streamed."""
    from tests.null.endpoints import answer

    assert not request.get("stream")
    writer.write(answer(200, b'{"choices": []}'))
