"""The plain client of a program by hand: one POST for each call, and no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2
from langchain_core.prompts import ChatPromptTemplate

TIMEOUT_S = 300.0

Message = tuple[str, str]  # role and content
# Told of each call: its start and seconds, and the tokens of its prompt, its output and the cache.
Heard = Callable[[float, float, int, int, int | None], None]


ROLES = {"human": "user", "system": "system", "ai": "assistant"}


def chat(template: ChatPromptTemplate, **values: str) -> list[Message]:
    """The messages of a workload's template: a program by hand sends the same texts."""
    made = template.format_messages(**values)
    return [(ROLES[message.type], message.text) for message in made]


class PlainClient:
    """Greedy chats with an OpenAI-compatible endpoint; each answer has `tokens` tokens."""

    def __init__(self, url: str, tokens: int, now: Callable[[], float], heard: Heard) -> None:
        self._http = httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S)
        self._tokens = tokens
        self._now = now
        self._heard = heard

    async def ask(self, messages: Sequence[Message], tokens: int | None = None) -> str:
        """The answer to a chat, of the client's number of tokens unless `tokens` is given.

        Raises httpx2.HTTPStatusError.
        """
        more = {} if tokens is None else {"max_tokens": tokens}
        sent = [{"role": role, "content": content} for role, content in messages]
        return str((await self.say(sent, **more))["content"])

    async def say(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """The message that answers a chat, with `more` fields in the request.

        Raises httpx2.HTTPStatusError.
        """
        began = self._now()
        body: dict[str, Any] = {
            "model": "default",
            "messages": list(messages),
            "max_tokens": self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        response = await self._http.post("/v1/chat/completions", json=body)
        found = response.raise_for_status().json()
        usage = found["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        counts = usage["prompt_tokens"], usage["completion_tokens"], cached
        self._heard(began, self._now() - began, *counts)
        message: dict[str, Any] = found["choices"][0]["message"]
        return message

    async def __aenter__(self) -> PlainClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
