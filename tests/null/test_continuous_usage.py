"""Streams that count: vLLM's `continuous_usage_stats` adds the usage so far to every chunk."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve
from tests.null.test_openai_tools import WEATHER
from tests.null.test_words_engine import words_engine
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one two three"}]})
TOOLS = (CHAT[0], {**CHAT[1], "tools": [WEATHER]})
TEXT = ("/v1/completions", {"prompt": "one two three"})
BOTH = {"include_usage": True, "continuous_usage_stats": True}


async def streamed(serve: Serve, route: str, **body: Any) -> list[dict[str, Any]]:
    engine = words_engine(null_step_s=0.001)
    server = await serve(NullConfig(), ServerConfig(), None, {"words": engine})
    body = {"model": "words", "max_tokens": 6, "stream": True, **body}
    lines = (await server.http.post(route, json=body)).text.splitlines()
    return [json.loads(one[6:]) for one in lines if one.startswith("data: {")]


@pytest.mark.parametrize(("route", "body"), [CHAT, TOOLS, TEXT], ids=["chat", "tools", "text"])
async def test_each_chunk_has_the_usage_so_far(
    route: str, body: dict[str, Any], serve: Serve
) -> None:
    """The prompt's tokens stay, and those of the answer grow to what the last chunk says."""
    *chunks, last = await streamed(serve, route, **body, stream_options=BOTH)
    usages = [one["usage"] for one in chunks]
    made = [one["completion_tokens"] for one in usages]
    assert made == sorted(made) and made[-1] == last["usage"]["completion_tokens"] == 6
    assert {0, 1, 2, 3, 4, 5, 6} == set(made)
    for usage in usages[1:]:
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"] > 0
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("options", [{"include_usage": True}, {"continuous_usage_stats": True}])
async def test_chunks_without_usage(options: dict[str, Any], serve: Serve) -> None:
    """Nobody has asked for it: as in vLLM, the field counts only beside `include_usage`."""
    chunks = await streamed(serve, CHAT[0], **CHAT[1], stream_options=options)
    assert ["usage" in one for one in chunks if one["choices"]] == [False] * sum(
        bool(one["choices"]) for one in chunks
    )


async def test_choices_are_counted_apart(serve: Serve) -> None:
    """Each chunk counts its own choice, and the last one counts all."""
    *chunks, last = await streamed(serve, CHAT[0], **CHAT[1], n=2, stream_options=BOTH)
    ends = [one["usage"] for one in chunks if one["choices"][0]["finish_reason"]]
    assert [one["completion_tokens"] for one in ends] == [6, 6]
    assert last["usage"]["completion_tokens"] == 12
