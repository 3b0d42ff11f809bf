"""Programs of the SDKs of Anthropic and Ollama, whose routes the server does not have."""

from __future__ import annotations

import anthropic
import ollama
import pytest

from tests.clients.conftest import ASK, Sent

SAID = [{"role": "user", "content": ASK}]


def test_anthropic_is_told_the_route(sent: Sent) -> None:
    """The package's own error says what to use instead of messages, and it is not tried again."""
    with anthropic.Anthropic(base_url=sent.recording.url, api_key="none") as client:
        with pytest.raises(anthropic.NotFoundError, match="use POST /v1/chat/completions") as told:
            client.messages.create(model="null", max_tokens=9, messages=SAID)
        with (
            pytest.raises(anthropic.NotFoundError, match="use POST /v1/chat/completions"),
            client.messages.stream(model="null", max_tokens=9, messages=SAID),
        ):
            pass
        with pytest.raises(anthropic.NotFoundError, match="use POST /tokenize"):
            client.messages.count_tokens(model="null", messages=SAID)
    assert "there is no route '/v1/messages'" in told.value.message
    assert len(sent.bodies) == 3


async def test_ollama_is_told_the_routes(sent: Sent) -> None:
    """A chat, a text, vectors and the list of models: the package's error says what to use."""
    client = ollama.AsyncClient(host=sent.recording.url)
    asked = {
        "/v1/chat/completions": lambda: client.chat("null", SAID),
        "/v1/completions": lambda: client.generate("null", ASK),
        "/v1/embeddings": lambda: client.embed("null", ASK),
        "/v1/models": client.list,
    }
    for route, ask in asked.items():
        with pytest.raises(ollama.ResponseError, match=f"use (POST|GET) {route}") as told:
            await ask()
        assert told.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="use POST /v1/chat/completions"):
        async for _ in await client.chat("null", SAID, stream=True):
            pass
