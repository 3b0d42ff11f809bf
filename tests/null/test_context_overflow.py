"""A prompt that is too long is refused in the words and with the code that clients look for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve
from weftline_engine.pretend.null import NullConfig

LIMIT = 40
LONG = "word " * 100  # the server refuses it before the engine has it
SHORT_WORDS = "w " * 60  # fewer tokens by the server's estimate, and too many for the engine
ROUTES = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/responses": lambda text: {"input": text},
}


def told(error: dict[str, Any]) -> None:
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {LIMIT} tokens" in error["message"]
    assert "prompt is too long" in error["message"]
    assert "exceeds the context window" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_a_long_prompt_is_a_400(serve: Serve, route: str, stream: bool) -> None:
    """A stream does not begin. All routes have one code."""
    server = await serve(NullConfig(context_limit=LIMIT))
    answer = await server.http.post(route, json={**ROUTES[route](LONG), "stream": stream})
    assert answer.status_code == 400
    told(answer.json()["error"])


@pytest.mark.parametrize("route", ROUTES)
async def test_an_engine_that_finds_it_too_long_says_the_same(serve: Serve, route: str) -> None:
    """The stream has begun by then. Its last event has the code."""
    server = await serve(NullConfig(context_limit=LIMIT))
    body = ROUTES[route](SHORT_WORDS)
    whole = await server.http.post(route, json=body)
    assert whole.status_code == 400
    told(whole.json()["error"])
    answer = await server.http.post(route, json={**body, "stream": True})
    assert answer.status_code == 200
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    last = json.loads(data[-1])
    if route == "/v1/responses":
        assert last["type"] == "response.failed"
        last = last["response"]
    told(last["error"])
