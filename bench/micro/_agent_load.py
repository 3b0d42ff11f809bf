"""The clients of the benchmark of agents: each runs one coding session, and times its answers."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import httpx2

from bench.replay.coding_sessions import CodingSession

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A request: when the client wanted to send it, and its first and its last token.

    A request that failed has no first token, and what the server said.
    """

    wanted: float
    first: float = math.inf
    last: float = math.inf
    tokens: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """The seconds to the first token, with the time in the client's own semaphore."""
        return self.first - self.wanted

    @property
    def rate(self) -> float:
        """The tokens a second behind the first one; 0 for a request that failed."""
        if self.tokens == 0:
            return 0.0
        took = self.last - self.first
        return (self.tokens - 1) / took if took > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Limit:
    """What an agent's user accepts: at this percentile of the requests the first token comes within
    `ttft_s`, and the others at `rate` a second or faster."""

    ttft_s: float
    rate: float
    percentile: float

    def row(self, requests: Sequence[Timed]) -> dict[str, Any]:
        """The figures of a run, and whether it was within the limit."""
        ttft = ranked([one.ttft_s for one in requests], self.percentile)
        rate = -ranked([-one.rate for one in requests], self.percentile)
        errors = [one.error for one in requests if one.error]
        return {
            "requests": len(requests),
            "failed": sum(one.tokens == 0 for one in requests),
            "ttft_s": round(ttft, 3),
            "tokens_per_s": round(rate, 2),
            "within": ttft <= self.ttft_s and rate >= self.rate,
            **({"error": errors[0][:200]} if errors else {}),
        }


def ranked(values: Sequence[float], percentile: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percentile / 100) - 1)]


async def agents(
    url: str,
    sessions: Sequence[CodingSession],
    document: Callable[[object, int], str],
    room: asyncio.Semaphore | None,
    ramp_s: float,
    limit_s: float | None = None,
) -> list[Timed]:
    """Run all sessions together, each begun `ramp_s` after the one before, for `limit_s` at most.
    The times of their requests that have ended. `room` lets some requests through at once."""
    # All texts are made before the first request, since this process also takes the times.
    texts = [[[document(*one) for one in turn.pieces] for turn in s.turns] for s in sessions]
    assert texts, "asyncio waits for at least one"
    limits = httpx2.Limits(max_connections=len(sessions))
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        found: list[Timed] = []

        async def one(number: int, session: CodingSession) -> None:
            await asyncio.sleep(number * ramp_s)
            await _session(client, session, texts[number], room, found)

        running = [asyncio.create_task(one(*item)) for item in enumerate(sessions)]
        _, late = await asyncio.wait(running, timeout=limit_s)
        for task in late:
            task.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
    wrong = [one for one in ended if isinstance(one, Exception)]
    if wrong:
        raise wrong[0]
    return found


async def _session(
    client: httpx2.AsyncClient,
    session: CodingSession,
    texts: Sequence[list[str]],
    room: asyncio.Semaphore | None,
    found: list[Timed],
) -> None:
    """Add the requests of a session, up to the first one that fails. The client names no
    session."""
    messages: list[dict[str, str]] = []
    for turn, new in zip(session.turns, texts, strict=True):
        await asyncio.sleep(turn.think_s)
        if not messages:
            messages.append({"role": "system", "content": new.pop(0)})
        messages.append({"role": "user", "content": " ".join(new) or "Begin."})
        wanted = time.perf_counter()
        async with room or nullcontext():
            timed, said = await _asked(client, messages, turn.output, wanted)
        found.append(timed)
        if not timed.tokens:
            break
        messages.append({"role": "assistant", "content": said})


async def _asked(
    client: httpx2.AsyncClient, messages: list[dict[str, str]], tokens: int, wanted: float
) -> tuple[Timed, str]:
    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, last, count, text = math.inf, math.inf, 0, ""
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return Timed(wanted, error=str(chunk["error"])), ""
                if (usage := chunk.get("usage")) is not None:
                    count = usage["completion_tokens"]
                for choice in chunk.get("choices") or ():
                    if said := choice["delta"].get("content"):
                        last, text = time.perf_counter(), text + said
                        first = min(first, last)
            if answer.is_error:
                return Timed(wanted, error=f"HTTP {answer.status_code}"), ""
    except httpx2.HTTPError as error:
        return Timed(wanted, error=repr(error)), ""
    return (Timed(wanted, first, last, count) if text else Timed(wanted, error="no text")), text
