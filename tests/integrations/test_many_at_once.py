"""Many runs at once in every tier: answers reach their own run, and cancelled runs
leave nothing.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.trace.prompt_origins import LISTENER
from tests.integrations.conftest import served
from weftline.kit import BACKGROUND, RunFeed

Chain = Runnable[Any, Any]

ASK = ChatPromptTemplate.from_template("Tell of {x}.")
AGAIN = ChatPromptTemplate.from_template("Again: {x}")
TEXT = StrOutputParser()
WAIT_S = 20.0

TIERS: dict[str, tuple[dict[str, Any], Callable[[Chain], Chain]]] = {
    "plain": ({"provenance": False}, lambda chain: chain),
    "swapped": ({}, lambda chain: chain),
    "accelerated": ({}, accelerate),
}
tiers = pytest.mark.parametrize("tier", TIERS)


def two_calls(tier: str, url: str, **options: Any) -> Chain:
    ours, way = TIERS[tier]
    llm = ChatWeftline(base_url=url, timeout=60, **options, **ours)
    return way(ASK | llm | TEXT | AGAIN | llm | TEXT)


def answer(x: str) -> str:
    """Return the null engine's answer to both calls."""
    return f"user: Again: user: Tell of {x}.\nassistant: \nassistant: "


async def sessions(url: str) -> float:
    """Return the number of open sessions of the server."""
    async with httpx2.AsyncClient() as http:
        lines = (await http.get(f"{url}/metrics")).text.splitlines()
    [count] = [line.split()[-1] for line in lines if line.startswith("weftline_sessions_open ")]
    return float(count)


def known() -> tuple[int, int, int, int]:
    """Count the runs, prompts and feeds of this process, and the followed sessions."""
    gc.collect()
    feeds = sum(type(one) is RunFeed for one in gc.get_objects())
    loop = BACKGROUND._loop
    followed = 0 if loop is None else len(asyncio.all_tasks(loop))
    return len(LISTENER.runs), len(LISTENER.pieces), feeds, followed


async def left(url: str, before: tuple[int, int, int, int]) -> dict[str, int]:
    """What the server and this process still have beyond `before`, once that is nothing."""
    names = ("runs", "prompts", "feeds", "followed sessions")
    deadline = time.monotonic() + WAIT_S
    while True:
        more = dict(zip(names, map(operator.sub, known(), before), strict=True))
        found = {"sessions": await sessions(url), **more}
        if all(count <= 0 for count in found.values()) or time.monotonic() > deadline:
            return {name: count for name, count in found.items() if count > 0}
        await asyncio.sleep(0.05)


async def test_five_hundred_graphs_do_not_mix() -> None:
    """The tests of provenance do the same with 200 runs."""
    with served() as url:
        before = known()
        chain = two_calls("accelerated", url)
        made = await asyncio.gather(*(chain.ainvoke({"x": f"soup {n}"}) for n in range(500)))
        assert made == [answer(f"soup {n}") for n in range(500)]
        assert await left(url, before) == {}


@pytest.fixture(scope="module")
def slow_url() -> Iterator[str]:
    with served("--null-step-s", "0.05") as url:
        yield url


@tiers
async def test_cancelled_runs_leave_nothing(tier: str, slow_url: str) -> None:
    """Every second of fifty runs is cancelled. The others are not affected.

    The cancelled runs would answer for a minute, so none of them ends before it is cancelled.
    """
    # The loop keeps cancelled timers behind one that is due earlier, with their contexts.
    earlier = asyncio.get_running_loop().call_later(2 * WAIT_S, lambda: None)
    before = known()
    chain = two_calls(tier, slow_url)
    inputs = [f"soup {n}" if n % 2 else "soup " * 1200 for n in range(50)]
    tasks = [asyncio.create_task(chain.ainvoke({"x": text})) for text in inputs]
    async with asyncio.timeout(WAIT_S):
        while await sessions(slow_url) < 25:  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.01)
    for task in tasks[::2]:
        task.cancel()
    made = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in made[::2])
    assert made[1::2] == [answer(f"soup {n}") for n in range(1, 50, 2)]
    del tasks, made, task
    assert await left(slow_url, before) == {}
    earlier.cancel()


@tiers
async def test_abandoned_streams_leave_nothing(tier: str, slow_url: str) -> None:
    """One stream is closed after its first text, and one is dropped."""
    before = known()
    chain = two_calls(tier, slow_url)
    parts: Any = chain.astream({"x": "soup " * 20})
    async for text in parts:
        if text:
            break
    await parts.aclose()
    stream = chain.stream({"x": "soup " * 20})
    while not next(stream):
        pass
    del stream, parts
    assert await left(slow_url, before) == {}
