"""The demo: a LangChain map-reduce summary of this repository's documentation, plain and compiled.

    python cookbook/demo.py [--dtype bfloat16|float32] [--repeat 3] [--output FILE]

Plain, LangChain sends each call by itself and carries the summaries to the last one. Compiled, the
same chain is one submit, and the summaries never leave the server. Each runs on a server of its own
that was just started, so neither finds anything of the other's in the KV cache.

It exits 1 if an intermediate value reached the client, or if in float32 the two texts differ.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_text_splitters import RecursiveCharacterTextSplitter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from langchain_weftline import ChatWeftline, compile_chain
from weftline import Client, timeline
from weftline.local import local_server
from weftline_engine.models import DEFAULT_MODEL, for_stream, resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/concepts.md", "docs/serving.md")

COLUMNS = ("call", "queue ms", "fill cached", "fill computed", "generate ms", "out", "round trips")

TURNS_S = 50.0  # no new turn is begun after so long

CHUNKS = 10
CHUNK_CHARS = 900  # about 200 tokens, one or two paragraphs

MAP = ChatPromptTemplate.from_messages([("human", "Summarise in one sentence:\n\n{text}")])
REDUCE = ChatPromptTemplate.from_messages([("human", "{notes}\n\nWrite a summary of this text.")])


def chunks() -> list[str]:
    """The documentation's prose in pieces, the same for both runs."""
    text = "\n\n".join(prose((ROOT / page).read_text()) for page in PAGES)
    splitter = RecursiveCharacterTextSplitter(chunk_size=CHUNK_CHARS, chunk_overlap=0)
    return splitter.split_text(text)[:CHUNKS]


def prose(markdown: str) -> str:
    """Paragraphs alone: a model of 135M parameters makes little of code and tables."""
    marks = ("    ", "|", "#", "- ", "```")
    lines = (line for line in markdown.splitlines() if not line.startswith(marks))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def summary_chain(llm: ChatWeftline) -> Runnable[list[str], str]:
    """The chain as a LangChain user writes it; `llm` is all that knows of weftline."""
    each = MAP | llm | StrOutputParser()
    final = REDUCE | llm.bind(max_tokens=96) | StrOutputParser()
    return each.map() | (lambda notes: {"notes": "\n\n".join(notes)}) | final


@dataclass(frozen=True, slots=True)
class Result:
    """One run: its text, seconds from the chain's start to its end, and what the server saw."""

    text: str
    seconds: float
    graph: dict[str, Any]
    requests: int
    read_by_client: int  # intermediate values


class _Count(BaseCallbackHandler):
    """Moves the progress bar at the end of each model call of the plain chain."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self._advance()


def run_plain(url: str, texts: list[str], advance: Callable[[], None]) -> Result:
    """Invoke the chain as it is; naming a session only groups its calls."""
    with Client(url) as client:
        session = client.session()
        llm = ChatWeftline(
            base_url=url, temperature=0, max_tokens=48, extra_body={"session_id": session.id}
        )
        chain = summary_chain(llm)
        began = time.perf_counter()
        text = chain.invoke(texts, {"callbacks": [_Count(advance)]})
        seconds = time.perf_counter() - began
        graph = session.graph()
        session.close()
    requests = len(graph["calls"])
    return Result(text, seconds, graph, requests, read_by_client=requests - 1)


def run_compiled(url: str, texts: list[str], advance: Callable[[], None]) -> Result:
    """Compile the same chain and invoke it: one request, which the whole bar waits for."""
    graphs: list[dict[str, Any]] = []
    llm = ChatWeftline(base_url=url, temperature=0, max_tokens=48)
    chain = compile_chain(summary_chain(llm), on_graph=graphs.append)
    began = time.perf_counter()
    text = chain.invoke(texts)
    seconds = time.perf_counter() - began
    for _ in range(len(texts) + 1):
        advance()
    inner = [v for v in graphs[0]["variables"] if v["consumers"]]
    reads = sum(v["client_reads"] for v in inner)
    return Result(text, seconds, graphs[0], requests=1, read_by_client=reads)


def main() -> int:
    """Run both, print what happened, write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, in turns")
    parser.add_argument("--output", type=Path, default=Path("out/demo.svg"))
    args = parser.parse_args()
    console = Console()
    model = str(resolve(DEFAULT_MODEL, progress=for_stream()))
    plain, compiled = run_in_turns(console, model, args.dtype, args.repeat)
    typical = {"plain LangChain": median(plain), "compiled by weftline": median(compiled)}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(timeline.svg({n: r.graph for n, r in typical.items()}))
    report(console, plain, compiled)
    console.print(f"timeline: {args.output}", soft_wrap=True)
    return verdict(console, plain + compiled, exact=args.dtype == "float32")


def run_in_turns(
    console: Console, model: str, dtype: str, repeat: int
) -> tuple[list[Result], list[Result]]:
    """Plain, compiled, plain, …: a neighbour that keeps the machine busy hurts both alike.

    On a slow machine there are fewer turns, so that nobody waits for three minutes.
    """
    texts = chunks()
    runs = (("plain LangChain", run_plain), ("compiled by weftline", run_compiled))
    results: tuple[list[Result], list[Result]] = ([], [])
    with Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        total = repeat * (len(texts) + 1)
        tasks = [progress.add_task(name, total=total) for name, _ in runs]
        began = time.monotonic()
        for turn in range(repeat):
            if turn > 0 and time.monotonic() - began > TURNS_S:
                break
            for task, (_, run), found in zip(tasks, runs, results, strict=True):
                with local_server(model, "--dtype", dtype) as url:
                    found.append(run(url, texts, lambda task=task: progress.advance(task)))
    return results


def median(results: list[Result]) -> Result:
    """The run in the middle, by its time."""
    return sorted(results, key=lambda result: result.seconds)[len(results) // 2]


def report(console: Console, plain: list[Result], compiled: list[Result]) -> None:
    """The summary, the table of what the server saw, and the two times."""
    shown = median(compiled)
    console.rule("the summary")
    console.print(shown.text.strip(), markup=False)
    console.rule("what the server saw of the compiled chain")
    table = Table(*COLUMNS)
    reads = {v["semantic_var_id"]: v["client_reads"] for v in shown.graph["variables"]}
    for call in shown.graph["calls"]:
        table.add_row(
            call["name"],
            f"{call['queue_s'] * 1e3:.0f}",
            str(call["cached_tokens"]),
            f"{call['computed_tokens']} ({call['fill_s'] * 1e3:.0f} ms)",
            f"{call['generate_s'] * 1e3:.0f}",
            str(call["output_tokens"]),
            str(sum(reads[v] for v in call["outputs"])),
        )
    console.print(table)
    for name, runs in (("plain", plain), ("compiled", compiled)):
        run, times = median(runs), sorted(run.seconds for run in runs)
        console.print(
            f"{name:>9}: {run.seconds:6.2f} s end to end (of {len(runs)} runs {times[0]:.2f} to "
            f"{times[-1]:.2f}), {run.requests:2} requests, "
            f"{run.read_by_client:2} intermediate values through the client",
            soft_wrap=True,
        )
    console.print(f"    ratio: {median(plain).seconds / median(compiled).seconds:.2f}")


def verdict(console: Console, results: list[Result], exact: bool) -> int:
    """0, or 1 with the reason: a value leaked, or two float32 runs do not say the same."""
    same = len({result.text for result in results}) == 1
    console.print("texts:", "equal" if same else "not equal (bfloat16 parts between batches)")
    if any(result.requests == 1 and result.read_by_client for result in results):
        console.print("[red]an intermediate value reached the client[/red]")
        return 1
    if exact and not same:
        console.print("[red]in float32 both runs must say the same[/red]")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
