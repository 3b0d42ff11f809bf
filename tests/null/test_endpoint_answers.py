"""What an endpoint tells apart, thoughts and native calls of tools, reaches the client apart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.null.endpoints import Endpoint, refuses, streams
from tests.null.test_openai_faults import config
from tests.null.test_openai_tools import USER, WEATHER
from weftline_engine.api import FinishReason
from weftline_engine.remote.openai.deltas import DeltaText
from weftline_engine.remote.openai.engine import OpenAIEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def call(arguments: str, name: str | None = None, index: int = 0) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return delta(tool_calls=[{"index": index, "id": "x", "type": "function", "function": function}])


THINKS = (
    delta(role="assistant", content=None),
    delta(reasoning_content="Rome is "),
    delta(reasoning_content="in Italy."),
    delta(content="It is "),
    delta(content="sunny."),
)
RENAMED = (delta(reasoning="Rome is in Italy."), delta(content="It is sunny."))
CALLS = (
    delta(reasoning_content="I look."),
    delta(content="Let me see."),
    call("", "get_weather"),
    call('{"city": '),
    call('"Rome"}'),
    call('{"city": "Oslo"}', "get_weather", 1),
    call("", "get_weather", 2),
    delta("tool_calls"),
)


@asynccontextmanager
async def serving(path: Path, events: Sequence[Any]) -> AsyncIterator[httpx2.AsyncClient]:
    """A server before an endpoint that answers each request with these events."""
    async with Endpoint(streams(*events)).on(path / "e") as socket:
        app = create_app(ServerConfig(), {"far": lambda: OpenAIEngine(config(socket))})
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://t") as http:
                yield http


async def whole(http: httpx2.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await http.post("/v1/chat/completions", json={"messages": [USER], **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


@pytest.mark.parametrize("events", [THINKS, RENAMED], ids=["reasoning_content", "reasoning"])
async def test_thoughts_of_an_endpoint(tmp_path: Path, events: Sequence[Any]) -> None:
    """They are reasoning_content, whole and streamed, and an item of a response. They were lost."""
    async with serving(tmp_path, events) as http:
        message = (await whole(http))["message"]
        assert message["reasoning_content"] == "Rome is in Italy."
        assert message["content"] == "It is sunny."
        body = {"messages": [USER], "stream": True}
        lines = (await http.post("/v1/chat/completions", json=body)).text.splitlines()
        deltas = [json.loads(one[6:])["choices"][0]["delta"] for one in lines if "data: {" in one]
        thoughts = [one["reasoning_content"] for one in deltas if "reasoning_content" in one]
        assert "".join(thoughts) == "Rome is in Italy."
        assert "".join(one.get("content", "") for one in deltas) == "It is sunny."
        made = (await http.post("/v1/responses", json={"input": "Rome?"})).json()
        assert [one["type"] for one in made["output"]] == ["reasoning", "message"]


async def test_native_calls_of_an_endpoint(tmp_path: Path) -> None:
    """Calls that the endpoint has read in its model's own format are calls here. One without
    arguments has an empty object."""
    async with serving(tmp_path, CALLS) as http:
        choice = await whole(http, tools=[WEATHER])
        message = choice["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
        assert calls == [
            ("get_weather", '{"city": "Rome"}'),
            ("get_weather", '{"city": "Oslo"}'),
            ("get_weather", "{}"),
        ]
        assert message["reasoning_content"] == "I look."
        assert (message["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")


async def test_thoughts_before_an_answer_in_a_form(tmp_path: Path) -> None:
    """The answer is the form alone, from its first token on."""
    events = (delta(reasoning_content="I count."), delta(content='{"n": 1}'))
    async with serving(tmp_path, events) as http:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        message = (await whole(http, response_format=form))["message"]
        assert message["content"] == '{"n": 1}'


PAIR = ("\ud83d", "\ude00")


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((delta(content="a" + PAIR[0]), delta(content=PAIR[1] + "b")), "a\U0001f600b"),
        ((delta(content="a" + PAIR[0]), delta(content=""), delta(content=PAIR[1])), "a\U0001f600"),
        ((delta(content="a" + PAIR[0]), delta(content="b")), "a\ufffdb"),
        ((delta(content=PAIR[1]), delta(content="a" + PAIR[0])), "\ufffda\ufffd"),
        ((delta(content=PAIR[0]), delta(content=PAIR[0] + PAIR[1])), "\ufffd\U0001f600"),
    ],
    ids=["joined", "joined later", "first half", "both ends", "after a half"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_halves_of_characters(
    events: Sequence[Any], text: str, stream: bool, tmp_path: Path
) -> None:
    """An endpoint cuts its stream within a character, or sends half of one. It was a 500."""
    async with serving(tmp_path, events) as http:
        if not stream:
            assert (await whole(http))["message"]["content"] == text
            return
        body = {"messages": [USER], "stream": True}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        events = [json.loads(one[6:]) for one in answer.text.splitlines() if "data: {" in one]
        assert "".join(one["choices"][0]["delta"].get("content", "") for one in events) == text


async def test_half_a_character_in_the_message_of_an_error(tmp_path: Path) -> None:
    """The error is told, and not a 500 of ours."""
    async with Endpoint(refuses(400, "no " + PAIR[0])).on(tmp_path / "e") as socket:
        app = create_app(ServerConfig(), {"far": lambda: OpenAIEngine(config(socket))})
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://t") as http:
                answer = await http.post("/v1/chat/completions", json={"messages": [USER]})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("no \ufffd")


def text_of(deltas: Sequence[dict[str, Any]], reason: FinishReason, **options: Any) -> str:
    answer = DeltaText(**options)
    texts = [answer.feed(one["choices"][0]["delta"]) for one in deltas]
    return "".join(texts) + answer.last(reason)


def test_an_answer_that_was_cut_off_stays_open() -> None:
    """Nothing closes a block or a call that the endpoint has not ended."""
    cut = FinishReason.LENGTH
    assert text_of([delta(reasoning="Hm")], cut) == "<think>\nHm"
    assert text_of([call('{"city": "Ro', "get_weather")], cut) == (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro'
    )
    assert text_of([delta(content="1")], cut, begin="[", end="]") == "[1"


def test_fixed_texts_stand_around_the_content() -> None:
    """They belong neither to thoughts nor to an answer without content."""
    thinks = [delta(reasoning="Hm"), delta(content="1"), delta(content="2")]
    options: dict[str, Any] = {"begin": "[", "end": "]"}
    assert text_of(thinks, FinishReason.STOP, **options) == "<think>\nHm\n</think>\n\n[12]"
    assert text_of(thinks, FinishReason.STOP, **options, thinks=False) == "[12]"
    assert text_of([], FinishReason.STOP, **options) == ""
