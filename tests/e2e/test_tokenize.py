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
