"""What weftline costs in front of a vLLM: the same chats through it and past it, in turns.

    make bench-vllm [ARGS="--rounds 4"]

Prints JSON. vLLM runs in the type that its torch multiplies faster in here. One vLLM serves both
ways, so the ratio of a pair of neighbouring rounds tells what the server between adds: `throughput`
is tokens a second with several chats at once, through weftline over past it; `first_token_ms` what
is added to the wait for the first token of a chat alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.harness import probe, servers
from weftline.local import local_server
from weftline_engine.models import DEFAULT_MODEL, resolve

SYSTEM = "You are a careful assistant. You answer every question briefly, in one sentence. " * 6
READY_S = 300.0


@contextmanager
def vllm(python: Path, model: Path, dtype: str) -> Iterator[str]:
    """A vLLM with the switches that weftline gives its own; its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "2"}
    command = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "m", "--dtype", dtype, "--max-model-len", "4096"),
        *("--host", "127.0.0.1", "--port", str(port), "--scheduling-policy", "priority"),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            _wait(f"http://127.0.0.1:{port}/health", running)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()


def _wait(url: str, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if running.poll() is not None:
            break
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    sys.exit("vLLM did not start")


class Client:
    """Chats with one base URL; prompts repeat in both ways, so that both find the same cache."""

    def __init__(self, url: str, model: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=300)
        self._model = model

    async def chat(self, question: str, tokens: int) -> tuple[float, int]:
        """Seconds to the first text, and how many tokens came."""
        body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question},
            ],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started = time.perf_counter()
        first, count = 0.0, 0
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                    first = time.perf_counter() - started
                if event.get("usage"):
                    count = event["usage"]["completion_tokens"]
        return first, count

    async def first_tokens(self, count: int) -> list[float]:
        """Milliseconds to the first token of chats, one after the other."""
        return [(await self.chat(f"What is {n} plus {n}?", 4))[0] * 1e3 for n in range(count)]

    async def throughput(self, at_once: int, tokens: int) -> float:
        """Tokens a second, with so many chats at once."""
        started = time.perf_counter()
        chats = (self.chat(f"Tell me about the number {n}.", tokens) for n in range(at_once))
        made = await asyncio.gather(*chats)
        return sum(count for _, count in made) / (time.perf_counter() - started)


async def measure(direct: str, through: str, args: argparse.Namespace) -> dict[str, Any]:
    ways = {"direct": Client(direct, "m"), "weftline": Client(through, "default")}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    firsts: dict[str, list[float]] = {way: [] for way in ways}
    for round in range(args.rounds + 1):
        # There and back, so that what drifts drifts for both.
        for way in sorted(ways, reverse=bool(round % 2)):
            first = await ways[way].first_tokens(args.firsts)
            rate = await ways[way].throughput(args.at_once, args.tokens)
            if round:  # the first one warms both
                firsts[way].append(statistics.median(first))
                rates[way].append(rate)
    ratios = [
        ours / theirs for ours, theirs in zip(rates["weftline"], rates["direct"], strict=True)
    ]
    added = [
        ours - theirs for ours, theirs in zip(firsts["weftline"], firsts["direct"], strict=True)
    ]
    return {
        "throughput": {**_quartiles(ratios), "direct_tokens_s": _quartiles(rates["direct"])},
        "first_token_ms": {**_quartiles(added), "direct_ms": _quartiles(firsts["direct"])},
        "at_once": args.at_once,
        "tokens": args.tokens,
        "rounds": args.rounds,
    }


def _quartiles(values: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--firsts", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    model = resolve(DEFAULT_MODEL)
    dtype = probe.fastest(probe.multiplications(model, dict(os.environ)))
    with (
        vllm(servers.VLLM_PYTHON, model, dtype) as direct,
        local_server(str(model), "--engine", "vllm", "--connect", direct) as through,
    ):
        found = asyncio.run(measure(direct, through, args))
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    print(json.dumps({**found, "dtype": dtype, "machine": machine}, indent=1))


if __name__ == "__main__":
    main()
