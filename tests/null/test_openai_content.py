"""The parts of a message on chats: text is read, and any other part is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Serve

TEXT = {"type": "text", "text": "hi"}
OTHERS = {
    "image_url": {"image_url": {"url": "http://there/1.png"}},
    "input_audio": {"input_audio": {"data": "", "format": "wav"}},
    "file": {"file": {"file_id": "file_1"}},
    "video_url": {"video_url": {"url": "http://there/1.mp4"}},
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_part_that_is_no_text_is_named(path: str, kind: str, serve: Serve) -> None:
    """The error has the part's place and type, in whichever message and whatever its role."""
    server = await serve()
    parts = [TEXT, {"type": kind, **OTHERS[kind]}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = await server.http.post(path, json={"messages": messages})
    error = answer.json()["error"]
    where = "messages.1.content.1"
    assert (answer.status_code, error["param"]) == (400, where)
    assert error["message"] == f"{where}: a part of type '{kind}' is not served: send text"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"text": "hi"}, "messages.0.content.0.type"),
        ("hi", "messages.0.content.0"),
        ({"type": "text"}, "messages.0.content.0.text"),
        ({"type": "refusal"}, "messages.0.content.0.refusal"),
    ],
)
async def test_a_part_that_is_not_complete(part: Any, param: str, serve: Serve) -> None:
    """The error is about the part's own type."""
    server = await serve()
    body = {"messages": [{"role": "user", "content": [part]}]}
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_refusal_of_an_earlier_turn_is_text_of_the_answer(serve: Serve) -> None:
    """A client sends back what the model said, also where the model said no."""
    server = await serve()
    refusal = {"type": "refusal", "refusal": "I cannot say."}
    messages = [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "content": [refusal]},
        {"role": "user", "content": "Why?"},
    ]
    answer = await server.http.post("/v1/chat/completions", json={"messages": messages})
    [choice] = answer.json()["choices"]
    assert "assistant: I cannot say.\nuser: Why?" in choice["message"]["content"]
