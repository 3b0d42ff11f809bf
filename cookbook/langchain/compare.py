"""The harness that the recipes share: runs one program in three ways, and prints what changed.

A recipe has `build(llm, tier)`, which returns a function without arguments that runs the program
and returns its text. The recipe applies `tier` to each of its chains:

    plain        ChatWeftline as any chat model: rendered messages
    swapped      the same program; the server knows templates, values and edges
    accelerated  accelerate(chain): LangChain runs unchanged, and the server has begun

Without arguments of `weftline serve` the recipe takes the model that is best for this machine if it
was pulled, and else the small one, whose texts mean little.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from langchain_weftline import ChatWeftline, accelerate
from weftline.delay import delayed
from weftline.local import local_server
from weftline_engine.own.models import DEFAULT_MODEL, cached
from weftline_engine.own.models.short_names import suggestion
from weftline_server.commands.default_model import this_machine

Tier = Callable[[Any], Any]
Build = Callable[[ChatWeftline, Tier], Callable[[], str]]

TIERS: dict[str, Tier] = {
    "plain": lambda chain: chain,
    "swapped": lambda chain: chain,
    "accelerated": accelerate,
}
_COUNTED = {
    "calls": r'weftline_calls_total\{.*state="done".*\} (\S+)',
    "round trips": r'weftline_http_requests_total\{method="POST",route="/v1/\S*} (\S+)',
    "cached tokens": r"weftline_prompt_cached_tokens_total\{.*\} (\S+)",
}


MEANING = (
    "calls: those of the model. round trips: requests to the server, which is {rtt:g} ms away. "
    "cached tokens: those of prompts that were in the KV cache. seconds: of the whole program."
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a program."""

    text: str
    seconds: float
    counts: dict[str, int]


def documentation(size: int = 900) -> list[str]:
    """Prose to work on, in pieces: this repository's own documentation."""
    page = Path(__file__).resolve().parents[2] / "docs" / "concepts.md"
    paragraphs = [p for p in page.read_text().split("\n\n") if not p.startswith(("#", "    "))]
    pieces = [""]
    for paragraph in paragraphs:
        if pieces[-1] and len(pieces[-1]) + len(paragraph) > size:
            pieces.append("")
        pieces[-1] += ("\n\n" if pieces[-1] else "") + paragraph.replace("\n", " ")
    return pieces


def run(build: Build, name: str, url: str, **options: Any) -> Result:
    """Run the program in one tier, on the server at `url`."""
    llm = ChatWeftline(base_url=url, temperature=0, provenance=name != "plain", **options)
    program = build(llm, TIERS[name])
    before, began = _counts(url), time.perf_counter()
    text = program()
    seconds = time.perf_counter() - began
    after = _counts(url)
    return Result(text, seconds, {what: after[what] - before[what] for what in after})


def _counts(url: str) -> dict[str, int]:
    metrics = httpx2.get(f"{url}/metrics").text
    return {
        what: round(sum(map(float, re.findall(pattern, metrics))))
        for what, pattern in _COUNTED.items()
    }


def compare(
    build: Build, *server: str, rtt_s: float = 0.0, url: str | None = None
) -> dict[str, Result]:
    """Run the program in every tier, each on a new server unless `url` is given."""
    found = {}
    for name in TIERS:
        with ExitStack() as stack:
            target = url or stack.enter_context(local_server(*server))
            if rtt_s:
                target = stack.enter_context(delayed(target, rtt_s))
            found[name] = run(build, name, target)
    return found


def best_model() -> str:
    """The model that this machine is advised to serve, if it was pulled; else the small one."""
    here = this_machine()
    best = suggestion(here.cores, here.free_bytes, here.gpu_bytes)
    if best is not None and cached(best.source, direct=True) is not None:
        return best.name
    return DEFAULT_MODEL


def main(build: Build) -> None:
    """Run a recipe from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--rtt-ms",
        type=float,
        default=250.0,
        help="a round trip to the server (default: 250, as to a hosted model)",
    )
    parser.add_argument("server", nargs="*", help="arguments of `weftline serve`")
    args = parser.parse_args()
    server = args.server or [best_model()]
    found = compare(build, *server, rtt_s=args.rtt_ms / 1e3)
    print(MEANING.format(rtt=args.rtt_ms))
    print(f"{'':12}" + "".join(f"{what:>15}" for what in (*_COUNTED, "seconds")))
    for name, result in found.items():
        counts = "".join(f"{count:>15}" for count in result.counts.values())
        print(f"{name:12}{counts}{result.seconds:>15.2f}")
    print("\n" + found["plain"].text.strip())
