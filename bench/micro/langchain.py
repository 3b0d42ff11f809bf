"""Measures what each tier gains for LangChain programs far from their server.

    make bench-langchain [ARGS="--rtt-ms 250 --repeat 3"]

One server runs the embedded engine, and a proxy adds the round trip. A first round warms the KV
cache for all tiers. Then each program runs in every tier in turn, so that ratios compare
consecutive runs. The cost of provenance (T1) is measured on calls to the null engine, alternately
with provenance and without it and its callback handler. The results are printed and written to
bench/results/DATE-MACHINE/langchain.json. So is what `accelerate` costs a call that is alone in a
node of a graph.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langgraph.graph import START, StateGraph

from bench.harness import machine
from bench.harness.results import dated, dumps, stamp, write
from bench.harness.texts import ROOT
from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.trace import provenance
from weftline.delay import delayed
from weftline.local import local_server

# The programs of the cookbook import each other by script path.
sys.path.insert(0, str(ROOT / "cookbook" / "langchain"))
import refine  # type: ignore[import-not-found]
from compare import TIERS, Build, run  # type: ignore[import-not-found]

CALLS = 400
STEPS = 5


def five_steps(llm: ChatWeftline, tier: Callable[[Any], Any]) -> Callable[[], str]:
    """A chain of five calls; each answers ten tokens and reads the answer before it."""
    short = llm.bind(max_tokens=10, extra_body={"ignore_eos": True})
    chain: Runnable[Any, Any] = ChatPromptTemplate.from_template("Name {x}.") | short
    for number in range(1, STEPS):
        ask = ChatPromptTemplate.from_template(f"Step {number}. Go on: {{x}}")
        chain = {"x": chain | StrOutputParser()} | ask | short
    whole = tier(chain | StrOutputParser())
    return lambda: whole.invoke({"x": "a river"})


def compared(build: Build, url: str, repeat: int) -> dict[str, Any]:
    """The seconds of each tier, and their ratios to the T0 run of the same round."""
    for name in TIERS:
        run(build, name, url)
    rounds = [{name: run(build, name, url) for name in TIERS} for _ in range(repeat)]
    found: dict[str, Any] = {}
    for name in TIERS:
        ratios = [one["T0"].seconds / one[name].seconds for one in rounds]
        found[name] = {
            "seconds": _quartiles([one[name].seconds for one in rounds]),
            "times_faster_than_T0": _quartiles(ratios),
            **rounds[-1][name].counts,
            "same_text_as_T0": all(one[name].text == one["T0"].text for one in rounds),
        }
    return found


def provenance_ms(url: str) -> dict[str, Any]:
    """The extra milliseconds of a call with provenance, sync and async."""
    prompt = ChatPromptTemplate.from_messages([("system", "You are {role}."), ("human", "{x}")])
    chains = [
        prompt | ChatWeftline(base_url=url, provenance=told, max_tokens=4) for told in (False, True)
    ]

    def given(number: int) -> dict[str, str]:
        return {"role": "a chef", "x": f"Tell of soup number {number}."}

    def sync(told: bool, number: int) -> float:
        with _heard(told):
            began = time.perf_counter()
            chains[told].invoke(given(number))
            return time.perf_counter() - began

    async def one(told: bool, number: int) -> float:
        with _heard(told):
            began = time.perf_counter()
            await chains[told].ainvoke(given(number))
            return time.perf_counter() - began

    async def all_async() -> list[tuple[float, float]]:
        return [(await one(True, n), await one(False, n)) for n in range(CALLS)]

    gc.disable()
    pairs = {
        "sync": [(sync(True, n), sync(False, n)) for n in range(CALLS)],
        "async": asyncio.run(all_async()),
    }
    gc.enable()
    return {
        name: _quartiles([(on - off) * 1e3 for on, off in found[CALLS // 10 :]])
        for name, found in pairs.items()
    }


class Soup(TypedDict, total=False):
    """The state of a graph that tells of a soup."""

    x: str
    said: Any


def alone_in_a_graph(url: str) -> dict[str, Any]:
    """The CPU time of a graph whose node makes one call: accelerated, over plain. In ratios."""
    chain = ChatPromptTemplate.from_template("Tell of soup number {x}.") | ChatWeftline(
        base_url=url, max_tokens=4
    )
    builder = StateGraph(Soup)
    builder.add_node("tell", lambda state: {"said": chain.invoke(state)})
    builder.add_edge(START, "tell")
    graph = builder.compile()
    fast = accelerate(graph)

    def cpu_s(one: Any, number: int) -> float:
        began = time.process_time()
        one.invoke({"x": str(number)})
        return time.process_time() - began

    gc.disable()
    pairs = [(cpu_s(fast, n), cpu_s(graph, n)) for n in range(CALLS)][CALLS // 10 :]
    gc.enable()
    return {
        "accelerated_over_plain": _quartiles([ours / plain for ours, plain in pairs]),
        "more_ms": _quartiles([(ours - plain) * 1e3 for ours, plain in pairs]),
    }


@contextmanager
def _heard(told: bool) -> Iterator[None]:
    """Set or remove the callback handler, which one model with provenance installs for all
    models."""
    handler = provenance._current.set(provenance.LISTENER if told else None)
    try:
        yield
    finally:
        provenance._current.reset(handler)


def _quartiles(values: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rtt-ms", type=float, default=250.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("server", nargs="*", help="arguments of `weftline serve`")
    args = parser.parse_args()
    about = machine.describe()
    found: dict[str, Any] = {**stamp(about), "rtt_ms": args.rtt_ms}
    with local_server("--engine", "null") as url:
        found["provenance_ms_per_call"] = provenance_ms(url)
        found["alone_in_a_graph"] = alone_in_a_graph(url)
    with local_server(*args.server) as near, delayed(near, args.rtt_ms / 1e3) as url:
        found["refine_8_chunks"] = compared(refine.build, url, args.repeat)
        found["five_steps_of_10_tokens"] = compared(five_steps, url, args.repeat)
    print(dumps(found))
    print(write(dated(about), "langchain", found))


if __name__ == "__main__":
    main()
