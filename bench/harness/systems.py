"""The systems under test: a server, and the way in which a LangChain user reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from bench.harness.servers import Kind, ServerSpec
from langchain_weftline import ChatWeftline, accelerate

TIMEOUT_S = 300.0


class Way(StrEnum):
    """How an application reaches its server."""

    CHAT_OPENAI = "ChatOpenAI"
    CHAT_WEFTLINE = "ChatWeftline"  # the swapped class alone
    ACCELERATED = "accelerate"  # LangChain runs the chain, whose calls were sent ahead


@dataclass(frozen=True, slots=True)
class System:
    """One bar of a figure. `at_once` limits how many applications the client runs together."""

    title: str
    way: Way
    server: ServerSpec
    at_once: int | None = None

    def llm(self, url: str, tokens: int) -> BaseChatModel:
        """A greedy chat model that answers exactly `tokens` tokens."""
        options: dict[str, Any] = {
            "base_url": f"{url}/v1",
            "model": "default",
            "api_key": "none",
            "temperature": 0,
            "max_tokens": tokens,
            # Retries keep their default: they cover connections that the server has just closed.
            # Calls that still fail are counted.
            "timeout": TIMEOUT_S,
            "extra_body": {"ignore_eos": True},
        }
        if self.way is Way.CHAT_OPENAI:
            return ChatOpenAI(**options)
        return ChatWeftline(**options)

    def prepared(self, chain: Runnable[Any, Any], on_graph: Any) -> Runnable[Any, Any]:
        """The chain as this system runs it; the server's record of its calls goes to `on_graph`."""
        return accelerate(chain, on_graph=on_graph) if self.way is Way.ACCELERATED else chain

    def turnstile(self) -> Callable[[], AbstractAsyncContextManager[Any]]:
        """A context that each application enters before it starts: the semaphore of `at_once`."""
        if self.at_once is None:
            return nullcontext
        gate = asyncio.Semaphore(self.at_once)
        return lambda: gate


VLLM = ServerSpec(Kind.VLLM)
WEFTLINE = ServerSpec(Kind.WEFTLINE)

BASELINE = "langchain-vllm"
OURS = "weftline"


def _weftline(title: str, *arguments: str) -> System:
    return System(title, Way.ACCELERATED, ServerSpec(Kind.WEFTLINE, arguments))


SYSTEMS: Mapping[str, System] = {
    BASELINE: System("ChatOpenAI + vLLM", Way.CHAT_OPENAI, VLLM),
    "openai-weftline": System("ChatOpenAI + weftline", Way.CHAT_OPENAI, WEFTLINE),
    "chat-weftline": System("ChatWeftline", Way.CHAT_WEFTLINE, WEFTLINE),
    OURS: _weftline("weftline"),
    # The baseline's own process is the engine, so the difference is the server's part alone.
    "weftline-vllm": System(
        "weftline on vLLM", Way.ACCELERATED, ServerSpec(Kind.WEFTLINE, engine=VLLM)
    ),
    # The server starts vLLM itself, with its scheduler inside.
    "weftline-vllm-plugin": System(
        "weftline in vLLM", Way.ACCELERATED, ServerSpec(Kind.WEFTLINE, starts_vllm=True)
    ),
    "openai-weftline-vllm": System(
        "ChatOpenAI + weftline on vLLM",
        Way.CHAT_OPENAI,
        ServerSpec(Kind.WEFTLINE, engine=VLLM),
    ),
    "without-memory": _weftline(
        "weftline without memory during tools", "--without", "admission,retention"
    ),
    "without-tool_pauses": _weftline("weftline without pauses by tool", "--without", "tool_pauses"),
    **{
        f"langchain-vllm-{n}": System(f"ChatOpenAI + vLLM, {n} at once", Way.CHAT_OPENAI, VLLM, n)
        for n in (4, 8, 12, 16)
    },
}
USUAL = (
    BASELINE,
    "openai-weftline",
    "chat-weftline",
    OURS,
    "weftline-vllm",
    "weftline-vllm-plugin",
)
IN_TEN_MINUTES = (BASELINE, "openai-weftline", OURS)
# What the server earns on the same engine: it leads the report.
SERVER_ONLY = ("weftline-vllm-plugin", "weftline-vllm")
ONCE = ("openai-weftline",)  # a quick run takes these at the first point only
ON_NULL = ("openai-weftline", "chat-weftline", OURS)
