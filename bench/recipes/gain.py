"""The harness that the recipes share: runs one on the plain LLM and on weftline, and compares them.

A recipe is `run(side)`, which answers a question and names its sources. Both sides are the same
program on the same model. On the plain side each call is a request as OpenAI's clients send it. On
the other side the server gets the graph, and knows what each call is for.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

import httpx
from llama_index.llms.weftline import Weftline

from bench.recipes.library import Store, lance
from bench.recipes.postgres import postgres
from langchain_weftline import ChatWeftline, compile_chain
from weftline import Client, timeline
from weftline.delay import delayed
from weftline.local import local_server

SHOWN = 24  # lines of a timeline
MIN_ROUNDS = 3  # for a verdict
GRAPHS_S = 10.0  # a run's graph arrives just after its answer


@dataclass(frozen=True, slots=True)
class Answer:
    """A recipe's answer. `waits` has the seconds that each user waited, by name."""

    text: str
    sources: list[str]
    waits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Side:
    """Where a recipe runs. Its models are greedy, so both sides must give the same answer."""

    url: str
    store: Store
    session: str | None  # the plain side has one, so that its calls have a timeline too
    graphs: list[Mapping[str, Any]] = field(default_factory=list)

    def chat_model(self, criteria: str = "latency", **options: Any) -> ChatWeftline:
        """The LLM of LangChain's programs."""
        extra = {"criteria": criteria} if self.session is None else {"session_id": self.session}
        options = {"base_url": self.url, "temperature": 0, **options}
        return ChatWeftline(extra_body=extra, provenance=self.session is None, **options)

    def compiled(self, chain: Any) -> Any:
        """`chain` as one graph in the server, or as LangChain runs it."""
        return compile_chain(chain, on_graph=self.graphs.append) if self.session is None else chain

    def llm(self, criteria: str = "latency", **options: Any) -> Weftline:
        """The LLM of LlamaIndex's programs. Nothing else differs between the sides."""
        options = {"base_url": self.url, "temperature": 0, **options}
        if self.session is None:
            return Weftline(criteria=criteria, on_graph=self.graphs.append, **options)
        extra = {**options.pop("additional_kwargs", {}), "session_id": self.session}
        return Weftline(ahead=False, provenance=False, additional_kwargs=extra, **options)


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a recipe: its answer, its seconds and tokens, and the graphs of its calls."""

    answer: Answer
    seconds: float
    counts: Mapping[str, int]
    graphs: list[Mapping[str, Any]]


Run = Callable[[Side], Answer]
Quartiles = tuple[float, float, float]
STORES: Mapping[str, Callable[[], AbstractContextManager[Store]]] = {
    "lance": lance,
    "postgres": postgres,
}
_COUNTED = {
    "calls": r'weftline_calls_total\{.*state="done".*\} (\S+)',
    "requests": r'weftline_http_requests_total\{method="POST",route="/v1/[sc][^"]*".*\} (\S+)',
    "cached tokens": r"weftline_prompt_cached_tokens_total\{.*\} (\S+)",
    "open": r"\nweftline_sessions_open (\S+)",
}


def compare(
    run: Run, store: Store, *server: str, url: str | None = None, rtt_s: float = 0.0
) -> dict[str, Result]:
    """Run the recipe on both sides, each on a new server unless `url` is given."""
    found = {}
    for name, answer in (("plain", _plain), ("weftline", _weftline)):
        with ExitStack() as stack:
            near = url or stack.enter_context(local_server(*server))
            target = stack.enter_context(delayed(near, rtt_s)) if rtt_s else near
            found[name] = answer(run, store, target)
    return found


def _plain(run: Run, store: Store, url: str) -> Result:
    with Client(url) as client:
        session = client.session()
        answer, seconds, counts = _measured(run, Side(url, store, session.id))
        graph = session.graph()
        session.close()
    return Result(answer, seconds, counts, [graph])


def _weftline(run: Run, store: Store, url: str) -> Result:
    side = Side(url, store, None)
    answer, seconds, counts = _measured(run, side)
    deadline = time.monotonic() + GRAPHS_S
    while _counts(url)["open"] and time.monotonic() < deadline:
        time.sleep(0.05)
    return Result(answer, seconds, counts, side.graphs)


def _measured(run: Run, side: Side) -> tuple[Answer, float, dict[str, int]]:
    before, began = _counts(side.url), time.perf_counter()
    answer = run(side)
    seconds = time.perf_counter() - began
    after = _counts(side.url)
    return answer, seconds, {name: after[name] - before[name] for name in after if name != "open"}


def _counts(url: str) -> dict[str, int]:
    metrics = httpx.get(f"{url}/metrics").text
    return {
        name: round(sum(map(float, re.findall(pattern, metrics))))
        for name, pattern in _COUNTED.items()
    }


def report(rounds: Sequence[Mapping[str, Result]]) -> str:
    """Answer, sources, the timelines of the last round, and the quartiles of the times."""
    plain, ours = rounds[-1]["plain"], rounds[-1]["weftline"]
    lines = [ours.answer.text.strip(), "", "sources: " + ", ".join(ours.answer.sources)]
    for name, result in rounds[-1].items():
        chart = "\n".join(map(timeline.text, result.graphs)).splitlines()
        left = [f"… and {len(chart) - SHOWN} more"] if len(chart) > SHOWN else []
        lines += ["", f"{name}:", *chart[:SHOWN], *left]
    lines += ["", f"{'':16}{'plain':>20}{'weftline':>20}"]
    for name in plain.counts:
        lines.append(f"{name:16}{plain.counts[name]:>20}{ours.counts[name]:>20}")
    for name in ("seconds", *ours.answer.waits):
        sides = [[_wait(found[side], name) for found in rounds] for side in ("plain", "weftline")]
        slow, fast = map(quartiles, sides)
        lines.append(f"{name:16}{_shown(slow):>20}{_shown(fast):>20}   {verdict(*sides)}")
    lines.append(f"times: quartiles of {len(rounds)} rounds, the sides in turns")
    return "\n".join(lines)


def quartiles(values: Sequence[float]) -> Quartiles:
    """The quartiles of one value or more."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def verdict(plain: Sequence[float], ours: Sequence[float]) -> str:
    """What the times say: a ratio of medians only where the quartiles do not overlap.

    Fewer than three rounds have no quartiles that could show noise, so they say nothing.
    """
    if len(plain) < MIN_ROUNDS:
        return "too few rounds to tell"
    slow, fast = quartiles(plain), quartiles(ours)
    ratio = slow[1] / fast[1]
    if fast[2] < slow[0]:
        return f"{ratio:.2f} times faster"
    if slow[2] < fast[0]:
        return f"{1 / ratio:.2f} times slower"
    return "no difference beyond the noise"


def _wait(result: Result, name: str) -> float:
    return result.seconds if name == "seconds" else result.answer.waits[name]


def _shown(times: Quartiles) -> str:
    return " ".join(f"{time:.2f}" for time in times)


def main(run: Run) -> None:
    """Run a recipe from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", choices=tuple(STORES), default="lance")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, each on new servers")
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="a round trip to the server")
    parser.add_argument("server", nargs="*", help="arguments of `weftline serve`")
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error("--repeat takes 1 or more")
    with STORES[args.store]() as store:
        rounds = range(args.repeat)
        found = [compare(run, store, *args.server, rtt_s=args.rtt_ms / 1e3) for _ in rounds]
        print(report(found))
