"""Measures what weftline costs in front of a vLLM: the same chats with and without it, in turns.

    make bench-vllm [ARGS="--rounds 4"]

It prints JSON and writes it to bench/results/DATE-MACHINE/vllm.json. One vLLM serves both ways, in
the dtype that its torch multiplies faster here. So the ratio of two consecutive rounds is the cost
of the server between. `throughput` is the ratio, with over without weftline, of the tokens a second
of several chats at once. `first_token_ms` is what weftline adds to the wait for the first token of
a single chat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import httpx

from bench.harness import machine, probe
from bench.harness.fleet import Fleet
from bench.harness.metrics import spread
from bench.harness.results import dated, dumps, stamp, write
from bench.harness.servers import Kind, ServerSpec, Setup
from weftline_engine.models import DEFAULT_MODEL, resolve

SYSTEM = "You are a careful assistant. You answer every question briefly, in one sentence. " * 6
# With the options that weftline gives a vLLM that it starts itself.
VLLM = ServerSpec(Kind.VLLM, ("--scheduling-policy", "priority", "--enable-prompt-tokens-details"))
WAYS = {"direct": VLLM, "weftline": ServerSpec(Kind.WEFTLINE, engine=VLLM)}


class Client:
    """Chats with one base URL. Both ways use the same prompts, so that both find the same cache."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=300)

    async def chat(self, question: str, tokens: int) -> tuple[float, int]:
        """The seconds to the first text, and the number of tokens."""
        body = {
            "model": "default",
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

    async def throughput(self, at_once: int, tokens: int) -> float:
        """Tokens a second of `at_once` chats together."""
        started = time.perf_counter()
        chats = (self.chat(f"Tell me about the number {n}.", tokens) for n in range(at_once))
        made = await asyncio.gather(*chats)
        return sum(count for _, count in made) / (time.perf_counter() - started)


async def first_tokens(ways: Mapping[str, Client], first: int, count: int) -> list[list[float]]:
    """Milliseconds to the first token of the same chat each way, one chat after the other.

    The way that goes first changes from chat to chat, so that other load on the machine, and the
    spinning of vLLM's threads, affect both.
    """
    found = []
    for number in range(first, first + count):
        question = f"What is {number} plus {number}?"
        waits = {
            way: (await ways[way].chat(question, 4))[0] * 1e3
            for way in sorted(ways, reverse=bool(number % 2))
        }
        found.append([waits[way] for way in ways])
    return found


async def measure(fleet: Fleet, args: argparse.Namespace) -> dict[str, Any]:
    """Run rounds of both ways in alternating order, so that a drift affects both."""
    ways = {way: Client(fleet.url(spec, 0)) for way, spec in WAYS.items()}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    waits: list[list[float]] = []
    for round in range(args.rounds + 1):
        await fleet.rest()
        chats = await first_tokens(ways, round * args.firsts, args.firsts)
        for way in sorted(ways, reverse=bool(round % 2)):
            await fleet.rest()
            rate = await ways[way].throughput(args.at_once, args.tokens)
            print(f"  {round} {way} {rate:.1f} tokens/s", flush=True)
            if round:  # the first round warms both up
                rates[way].append(rate)
        waits += chats if round else []
    ratios = [ours / theirs for theirs, ours in zip(*rates.values(), strict=True)]
    return {
        "throughput": asdict(spread(ratios)),
        "direct_tokens_s": asdict(spread(rates["direct"])),
        "first_token_ms": asdict(spread([ours - theirs for theirs, ours in waits])),
        "direct_first_token_ms": asdict(spread([theirs for theirs, _ in waits])),
        "at_once": args.at_once,
        "tokens": args.tokens,
        "rounds": args.rounds,
    }


async def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Start both servers and measure; the results with their date, machine and dtype."""
    model = resolve(DEFAULT_MODEL)
    dtype = probe.fastest(probe.multiplications(model, dict(os.environ)))
    async with Fleet() as fleet:
        await fleet.need(Setup(model, vllm_dtype=dtype), WAYS)
        found = await measure(fleet, args)
    return {**stamp(machine.describe()), "dtype": dtype, **found}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--firsts", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    found = asyncio.run(compare(parser.parse_args()))
    write(dated(found["machine"]), "vllm", found)
    print(dumps(found))


if __name__ == "__main__":
    main()
