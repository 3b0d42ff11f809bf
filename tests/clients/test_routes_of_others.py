"""Programs of the SDK of Ollama, whose routes the server does not have."""

from __future__ import annotations

import ollama
import pytest

from tests.clients.conftest import ASK, Sent

SAID = [{"role": "user", "content": ASK}]


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
