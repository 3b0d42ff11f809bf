"""The cached tokens that weftline tells in front of an OpenAI endpoint, beside its own counters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.null.asgi import Server

RULES = " ".join(f"Rule {i}: be brief, and do not repeat rule {i - 1}." for i in range(30))


def metric(metrics: bytes, name: str, **labels: str) -> int:
    """A counter of an endpoint's /metrics; 0 before its first count."""
    families = text_string_to_metric_families(metrics.decode())
    samples = [one for family in families for one in family.samples]
    return int(
        sum(
            one.value
            for one in samples
            if one.name == name and labels.items() <= dict(one.labels).items()
        )
    )


async def _asked(server: Server, **body: Any) -> tuple[int, int]:
    """The prompt tokens and the cached ones of a chat, or of a completion if it has a prompt."""
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    body = {"model": "default", "max_tokens": 6, "temperature": 0, **body}
    answer = await server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        lines = [one[6:] for one in answer.text.splitlines() if one.startswith("data: {")]
        [usage] = [told["usage"] for one in lines if (told := json.loads(one)).get("usage")]
    else:
        usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def check_counts(
    server: Server, computed: Callable[[], Awaitable[int]], stop_id: int
) -> dict[str, list[int]]:
    """For each kind of calls, the endpoint has computed as many prompt tokens as were told as not
    cached. Returns the cached tokens of each call."""

    def chat(own: str, **more: Any) -> Awaitable[tuple[int, int]]:
        said = [{"role": "system", "content": RULES}, {"role": "user", "content": own}]
        return _asked(server, messages=said, **more)

    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    kinds: dict[str, Callable[[], list[Awaitable[tuple[int, int]]]]] = {
        "chat": lambda: [chat("Where does the river begin?")],
        "the same": lambda: [chat("Where does the river begin?")],
        "streamed": lambda: [chat("Where does it end?", **streamed)],
        "stopped": lambda: [chat("What is at its bank?", stop=["e", "a"])],
        "stop ids": lambda: [chat("Who rows there?", stop_token_ids=[stop_id], ignore_eos=True)],
        "siblings": lambda: [chat(f"Name boat {at} of the harbour.") for at in range(4)],
        "text": lambda: [_asked(server, prompt=f"{RULES} So:")],
        "text, streamed": lambda: [_asked(server, prompt=f"{RULES} Or:", **streamed)],
    }
    found: dict[str, list[int]] = {}
    for kind, calls in kinds.items():
        before = await computed()
        told = await asyncio.gather(*calls())
        assert sum(prompt - cached for prompt, cached in told) == await computed() - before, kind
        found[kind] = [cached for _, cached in told]
    return found
