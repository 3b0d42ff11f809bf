"""Replays sessions on a server that runs: any endpoint with OpenAI's API, or weftline's graphs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from bench.harness.metrics import spread
from weftline.aclient import AsyncSession
from weftline.protocol import Call, InOut, Placeholder, Sampling, Segment

from .trace import Recorded
from .words import Conversation


@dataclass(slots=True)
class Counts:
    """The tokens of prompts as the server counts them."""

    prompt: int = 0
    cached: int = 0


class Client(Protocol):
    """Sends the prompts of one session, one after the other. `close` ends it."""

    async def ask(self, prompt: str, tokens: int) -> str: ...

    async def close(self) -> Counts: ...


@dataclass(slots=True)
class OpenAIClient:
    """Sends text to /v1/completions, with the session's id in a header."""

    http: httpx.AsyncClient
    model: str
    session: str
    counts: Counts = field(default_factory=Counts)

    async def ask(self, prompt: str, tokens: int) -> str:
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        headers = {"X-Session-ID": self.session}
        response = await self.http.post("/completions", json=body, headers=headers)
        response.raise_for_status()
        answer = response.json()
        usage = answer["usage"]
        self.counts.prompt += usage["prompt_tokens"]
        self.counts.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return str(answer["choices"][0]["text"])

    async def close(self) -> Counts:
        return self.counts


@dataclass(slots=True)
class GraphClient:
    """Sends calls of one session to weftline."""

    session: AsyncSession
    model: str | None = None
    turns: int = 0

    async def ask(self, prompt: str, tokens: int) -> str:
        name = f"turn{self.turns}"
        self.turns += 1
        sampling = Sampling(max_tokens=tokens, temperature=0.0)
        out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=name, sampling=sampling)
        text = (Segment(text=prompt), Segment(output="o"))
        await self.session.submit(
            [Call(name="turn", prompt=text, placeholders=(out,), model=self.model)]
        )
        return str(await self.session.get(name))

    async def close(self) -> Counts:
        calls = (await self.session.graph())["calls"]
        await self.session.close()
        return Counts(
            sum(one["prompt_tokens"] for one in calls), sum(one["cached_tokens"] for one in calls)
        )


@dataclass(slots=True)
class Outcome:
    """The seconds of each session and of each answer, and the tokens of all prompts."""

    sessions_s: list[float] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0

    @property
    def row(self) -> dict[str, object]:
        """The figures. The cached share is 0 where the server does not count it."""
        return {
            "sessions_per_minute": round(60 * len(self.sessions_s) / self.seconds, 3),
            "session_s": spread(self.sessions_s).to_json(),
            "answer_s": spread(self.answers_s).to_json(),
            "prompt_tokens": self.counts.prompt,
            "cached_share": round(self.counts.cached / max(1, self.counts.prompt), 4),
        }


async def replay(
    sessions: Sequence[Recorded], client: Callable[[str], Awaitable[Client]], at_once: int
) -> Outcome:
    """Run all sessions, `at_once` of them together, each with a client of its own."""
    outcome, left, began = Outcome(), list(sessions), time.perf_counter()

    async def one() -> None:
        while left:
            recorded = left.pop(0)
            started = time.perf_counter()
            words, sends = Conversation(recorded.id), await client(recorded.id)
            for turn in recorded.turns:
                await asyncio.sleep(turn.think_s)
                prompt, asked = words.prompt(turn), time.perf_counter()
                answer = await sends.ask("".join(f"{word} " for word in prompt), turn.output)
                outcome.answers_s.append(time.perf_counter() - asked)
                words.answered(turn, prompt, answer.split())
            counts = await sends.close()
            outcome.counts.prompt += counts.prompt
            outcome.counts.cached += counts.cached
            outcome.sessions_s.append(time.perf_counter() - started)

    await asyncio.gather(*(one() for _ in range(at_once)))
    outcome.seconds = time.perf_counter() - began
    return outcome
