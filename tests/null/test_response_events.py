"""The events of a streamed response: each item of the output is announced before the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve
from tests.null.test_openai_tools import CALL
from tests.null.test_thinking import SWITCHED
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullMode

TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", ["message"]),
        ("Rome.", ["message"]),
        ("<think>\nRome", ["reasoning", "message"]),
        (CALL, ["function_call"]),
    ],
    ids=["empty", "a text", "only thoughts", "a call"],
)
async def test_each_item_is_announced(
    text: str, kinds: list[str], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without a text is an empty message. Clients that build the response of its events
    have the same items as the whole response at the end."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", text),)))
    body = {"input": "Rome?", "stream": True, "tools": [TOOL]}
    lines = (await server.http.post("/v1/responses", json=body)).text.splitlines()
    events: list[dict[str, Any]] = [
        json.loads(line[6:]) for line in lines if line.startswith("data: ")
    ]
    last = events[-1]
    assert last["type"] == "response.completed"
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    assert [one["type"] for one in done] == kinds
    added = [one["item"]["id"] for one in events if one["type"] == "response.output_item.added"]
    assert added == [one["id"] for one in done]
    whole = (await server.http.post("/v1/responses", json={**body, "stream": False})).json()
    assert [one["type"] for one in whole["output"]] == kinds
