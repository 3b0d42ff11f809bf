"""Requests about kept responses and conversations, as their tests send them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.null.asgi import Server

Json = dict[str, Any]


async def respond(server: Server, input: Any, **more: Any) -> Json:
    """A response to this input."""
    answer = await server.http.post("/v1/responses", json={"input": input, **more})
    assert answer.status_code == 200, answer.text
    made: Json = answer.json()
    return made


async def refused(server: Server, method: str, path: str, **body: Any) -> tuple[int, str, str]:
    """The status, the type and the field of an error."""
    answer = await server.http.request(method, path, json=body or None)
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["param"]


async def got(server: Server, path: str) -> Json:
    """What a GET answers."""
    answer = await server.http.get(path)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def ended(server: Server, id: str) -> Json:
    """The response in the background at its end, for which the client polls."""
    while True:
        found = await got(server, f"/v1/responses/{id}")
        if found["status"] not in ("queued", "in_progress"):
            return found
        await asyncio.sleep(0.01)


def events_of(text: str) -> list[Json]:
    """The events of a stream."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def text_of(response: Json) -> str:
    """The text of a response's message."""
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def said(items: list[Json]) -> list[str]:
    """The items, a line for each."""
    return [
        f"{one.get('role', one['type'])}: {one['content'][0]['text']}"
        if "content" in one
        else f"{one['type']}: {one.get('output', one.get('arguments'))}"
        for one in items
    ]
