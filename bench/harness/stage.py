"""Gives a workload's program the models of one system, and records its applications and calls."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import LLMResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from bench.harness.systems import System, Way
from bench.harness.texts import Texts
from bench.harness.workload import Scale

Ask = Callable[[dict[str, str]], Awaitable[str]]  # an answer for the values of a prompt

_current: ContextVar[App | None] = ContextVar("app", default=None)


@dataclass(slots=True)
class Call:
    """One model call: its start in seconds after the run's start, its seconds and its tokens.

    `queue_s`, `fill_s` and `cached` (tokens) come from the server; None if it reports nothing.
    """

    name: str
    start: float
    seconds: float
    prompt: int
    output: int
    queue_s: float | None = None
    fill_s: float | None = None
    cached: int | None = None


@dataclass(slots=True)
class App:
    """One execution of an application: its start and seconds, its result or its error.

    `counted` are output tokens of calls that are missing from `calls`.
    """

    kind: str
    start: float
    seconds: float = 0.0
    result: str = ""
    error: str | None = None
    calls: list[Call] = field(default_factory=list)
    counted: int = 0

    @property
    def output(self) -> int:
        return self.counted + sum(call.output for call in self.calls)


class Stage:
    """One system during one run of a workload.

    `prepared(chain)` prepares a chain as the system's user would; some systems leave it unchanged.
    `app(kind)` surrounds one execution of an application and counts its failure instead of raising.
    """

    def __init__(self, system: System, url: str, texts: Texts, scale: Scale, seed: int) -> None:
        self._system = system
        self.url = url
        self.way = system.way
        self.texts = texts
        self.scale = scale
        self.rng = random.Random(seed)
        self.seed = seed
        self._turnstile = system.turnstile()
        self.apps: list[App] = []
        self.prompts: list[str] = []  # of the calls that LangChain makes itself
        self._began = time.perf_counter()

    def llm(self, tokens: int, *, accelerated: bool = True) -> BaseChatModel:
        """A greedy chat model that answers exactly `tokens` tokens.

        Its calls are recorded by a callback, unless it is for a chain that this system accelerates.
        There the server's graph tells of them.
        """
        model = self._system.llm(self.url, tokens)
        if not accelerated or self.way is not Way.ACCELERATED:
            model.callbacks = [_Watch(self.now, self.prompts)]
        return model

    def asker(self, prompt: ChatPromptTemplate, tokens: int) -> Ask:
        """Ask with a prompt for answers of `tokens` tokens, by a chain of one call."""
        return self.prepared(prompt | self.llm(tokens) | StrOutputParser()).ainvoke

    def prepared(self, chain: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """The chain as a user of this system runs it."""
        return self._system.prepared(chain, self.take_graph)

    @asynccontextmanager
    async def app(self, kind: str) -> AsyncIterator[App]:
        """Record one execution of an application.

        An error is recorded as well. Only a cancel is raised.
        """
        app = App(kind, self.now())
        self.apps.append(app)
        token = _current.set(app)
        try:
            async with self._turnstile():
                yield app
        except Exception as error:
            app.error = f"{type(error).__name__}: {error}"[:300]
        finally:
            _current.reset(token)
            app.seconds = self.now() - app.start

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def take_call(self, call: Call) -> None:
        """Record a call that the application's client made itself."""
        if (app := _current.get()) is not None:
            app.calls.append(call)

    def take_graph(self, graph: Mapping[str, Any]) -> None:
        """Record the calls of a graph that the server ran for the current application."""
        app = _current.get()
        if app is None:
            return
        origin = min((step["queued_s"] for c in graph["calls"] for step in c["steps"]), default=0.0)
        for call in graph["calls"]:
            for step in call["steps"]:
                if step["started_s"] is not None:
                    app.calls.append(_from_step(call["name"], app.start - origin, step))


def _from_step(name: str, shift: float, step: dict[str, Any]) -> Call:
    phases = (float(step[f"{phase}_s"] or 0) for phase in ("queue", "fill", "generate"))
    queue, fill, generate = phases
    return Call(
        name=name,
        start=shift + step["queued_s"],
        seconds=queue + fill + generate,
        prompt=step["prompt_tokens"],
        output=step["output_tokens"],
        queue_s=queue,
        fill_s=fill,
        cached=step["cached_tokens"],
    )


class _Watch(AsyncCallbackHandler):
    """Records when each call of a chat model began and ended, and its tokens."""

    run_inline = True

    def __init__(self, now: Callable[[], float], prompts: list[str]) -> None:
        self._now = now
        self._prompts = prompts
        self._starts: dict[UUID, float] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        self._prompts.append("\n".join(message.text for message in messages[0]))
        self._starts[run_id] = self._now()

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        start = self._starts.pop(run_id)
        app = _current.get()
        if app is None:
            return
        message: Any = response.generations[0][0].message  # type: ignore[union-attr]
        usage = message.usage_metadata or {}
        cached = usage.get("input_token_details", {}).get("cache_read")
        prompt, output = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        app.calls.append(Call("call", start, self._now() - start, prompt, output, cached=cached))
