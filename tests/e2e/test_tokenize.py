"""POST /tokenize on the real model."""

from __future__ import annotations

import httpx2


def test_a_text_and_a_chat_are_tokenised(model_url: str) -> None:
    """The counts are those of the usage of a completion of the same prompt."""
    with httpx2.Client(base_url=model_url, timeout=60) as http:
        text = http.post("/tokenize", json={"prompt": "one two three"}).json()
        assert text["count"] == len(text["tokens"]) == 3
        messages = [{"role": "user", "content": "one two three"}]
        chat = http.post("/tokenize", json={"messages": messages, "model": "smollm2"}).json()
        body = {"messages": messages, "model": "SmolLM2-135M-Instruct", "max_tokens": 1}
        answer = http.post("/v1/chat/completions", json=body).json()
        assert answer["usage"]["prompt_tokens"] == chat["count"] > text["count"]
        assert answer["model"] == text["model"] == chat["model"]


def test_the_prompt_of_a_message_is_counted(model_url: str) -> None:
    """The count is that of the message's usage, with its tools and its system prompt."""
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    body = {
        "model": "SmolLM2-135M-Instruct",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "one two three"}],
        "tools": [tool],
    }
    with httpx2.Client(base_url=model_url, timeout=60) as http:
        counted = http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
        usage = http.post("/v1/messages", json={**body, "max_tokens": 1}).json()["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted > 20
