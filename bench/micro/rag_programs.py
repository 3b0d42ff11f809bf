"""Advanced RAG from LangChain and LlamaIndex, plainly and ahead, in turns.

    weftline bench rag_programs --quick

The engine has no model. It takes no time, so that everything else shows, and then 20 ms for a
token. The server is near, and then 250 ms away. A ratio compares two runs that followed each
other. Given are medians with quartiles.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness.metrics import spread
from bench.micro import _rag_programs
from bench.micro._rag_programs import STORE, Program
from langchain_weftline import WeftlineEmbeddings, WeftlineVectorStore
from weftline.delay import delayed
from weftline.local import local_server

STEPS_S = (0.0, 0.02)  # the time for a token
FAR_S = 0.25
WARM = 2
TEXTS = ["Rome lies on the Tiber.", "The weft crosses the warp.", "Soup is hot.", "Rome is old."]
QUESTION = "Which rivers does the text name?"
# Both frameworks' prompts for queries, and any other.
RULES = [
    ("Generate 3 search queries", "rivers of Rome\nthe Tiber\nold towns"),
    ("You are an AI language model assistant", "rivers of Rome\nthe Tiber\nold towns"),
    ("", "The Tiber."),
]
PROGRAMS: Mapping[str, Callable[[str, bool], Program]] = {
    "LangChain": _rag_programs.langchain,
    "LlamaIndex": _rag_programs.llama_index,
}


def rounds(plain: Program, ahead: Program, count: int) -> tuple[list[float], list[float]]:
    """The seconds of each, run by run. Raises SystemExit if the answers differ."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM + count):
        answers = []
        for times, program in zip(seconds, (plain, ahead), strict=True):
            began = time.perf_counter()
            answers.append(program(QUESTION))
            if number >= WARM:
                times.append(time.perf_counter() - began)
        if answers[0] != answers[1]:
            raise SystemExit(f"weftline bench rag_programs: two answers: {answers}")
    return seconds


def row(
    name: str, step_s: float, rtt_s: float, plain: Sequence[float], ahead: Sequence[float]
) -> str:
    """A line of the table."""
    ratios = [slow / fast for slow, fast in zip(plain, ahead, strict=True)]
    cells = [name, f"{step_s * 1e3:.0f} ms", f"{rtt_s * 1e3:.0f} ms"]
    for found, form in ((spread(plain), ".2f"), (spread(ahead), ".2f")):
        cells.append(f"{found.median:{form}} s ({found.low:{form}} to {found.high:{form}})")
    found = spread(ratios)
    cells.append(f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})")
    return f"| {' | '.join(cells)} |"


@contextmanager
def served(step_s: float) -> Iterator[str]:
    """A server of an engine without a model, which takes so long for a token, and the texts."""
    with tempfile.TemporaryDirectory() as folder:
        script, config = Path(folder) / "script.json", Path(folder) / "weftline.toml"
        script.write_text(json.dumps([{"when": when, "reply": reply} for when, reply in RULES]))
        config.write_text(
            f'[[embedder]]\nname = "words"\nmodel = "null"\n[[store]]\nname = "{STORE}"\n'
            'store = "memory"\n'
        )
        options = ["--null-mode", "script", "--null-script", str(script)]
        options += ["--null-step-s", str(step_s), "--config", str(config)]
        with local_server("--engine", "null", *options) as url:
            embeddings = WeftlineEmbeddings(base_url=url)
            WeftlineVectorStore(embeddings, base_url=url, store=STORE).add_texts(TEXTS)
            yield url


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. The exit code is 0."""
    parser = argparse.ArgumentParser(
        prog="weftline bench rag_programs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="five rounds")
    count = 5 if parser.parse_args(argv).quick else 11
    print("| program | a token | round trip | plain | ahead | times faster |")
    print("|---|---|---|---|---|---|")
    for step_s in STEPS_S:
        with served(step_s) as near, delayed(near, FAR_S) as far:
            for name, make in PROGRAMS.items():
                for rtt_s, url in ((0.0, near), (FAR_S, far)):
                    times = rounds(make(url, False), make(url, True), count)
                    print(row(name, step_s, rtt_s, *times), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
