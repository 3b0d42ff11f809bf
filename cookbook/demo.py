"""The demo: two LangChain summaries of this repository's documentation, plain and compiled.

    python cookbook/demo.py [--dtype bfloat16|float32] [--repeat 2] [--output FOLDER]

The first refines a summary with each part of a text. A proxy in this process makes its server
appear 250 ms away. Each call waits for the one before it, and in plain LangChain also for the round
trip. The second summarises parts side by side and joins the summaries, on a server of the same
machine. Compiled, each chain is one submit, and the summaries never leave the server. Each run has
its own new server, so that no run finds the KV cache of another.

It exits with 1 if an intermediate value reached the client, or if two float32 texts differ.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_text_splitters import RecursiveCharacterTextSplitter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from langchain_weftline import ChatWeftline, compile_chain
from weftline import Client, timeline
from weftline.delay import delayed
from weftline.local import local_server
from weftline_engine.models import DEFAULT_MODEL, for_stream, resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/concepts.md", "docs/serving.md")

COLUMNS = ("call", "queue ms", "fill cached", "fill computed", "generate ms", "out", "round trips")

TURNS_S = 60.0  # no new turn begins after this time

PARTS, PART_CHARS = 8, 400  # the text that is refined
CHUNKS, CHUNK_CHARS = 10, 900  # the other text: about 200 tokens each, one or two paragraphs
FAR_S = 0.25  # a round trip over the internet to a hosted model (Parrot, section 8.1: 0.2 to 0.3)

FIRST = ChatPromptTemplate.from_template("Summarise in one sentence:\n\n{part0}")
MAP = ChatPromptTemplate.from_messages([("human", "Summarise in one sentence:\n\n{text}")])
REDUCE = ChatPromptTemplate.from_messages([("human", "{notes}\n\nWrite a summary of this text.")])


def pieces(count: int, chars: int) -> list[str]:
    """The documentation's prose in pieces, the same for all runs."""
    text = "\n\n".join(prose((ROOT / page).read_text()) for page in PAGES)
    splitter = RecursiveCharacterTextSplitter(chunk_size=chars, chunk_overlap=0)
    return splitter.split_text(text)[:count]


def prose(markdown: str) -> str:
    """The paragraphs only, because a model of 135M parameters cannot use code and tables."""
    marks = ("    ", "|", "#", "- ", "```")
    lines = (line for line in markdown.splitlines() if not line.startswith(marks))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def refine_chain(llm: ChatWeftline) -> Runnable[Any, str]:
    """A chain over {"part0": text, …}, as a LangChain user writes it. Only `llm` knows weftline."""
    short = llm.bind(max_tokens=24)
    chain: Runnable[Any, Any] = RunnablePassthrough.assign(
        summary=FIRST | short | StrOutputParser()
    )
    for number in range(1, PARTS):
        refine = ChatPromptTemplate.from_template(
            f"{{summary}}\n\nRefine this summary with:\n\n{{part{number}}}"
        )
        chain = chain.assign(summary=refine | short | StrOutputParser())
    return chain | itemgetter("summary")


def map_reduce_chain(llm: ChatWeftline) -> Runnable[Any, str]:
    """A chain over [text, …], as a LangChain user writes it. Only `llm` knows weftline."""
    each = MAP | llm.bind(max_tokens=48) | StrOutputParser()
    final = REDUCE | llm.bind(max_tokens=96) | StrOutputParser()
    return each.map() | (lambda notes: {"notes": "\n\n".join(notes)}) | final


@dataclass(frozen=True, slots=True)
class Program:
    """A chain, its input, the number of its calls, and the distance of its server."""

    name: str
    title: str
    chain: Callable[[ChatWeftline], Runnable[Any, str]]
    input: Any
    calls: int
    rtt_s: float = 0.0

    @contextmanager
    def far_from(self, url: str) -> Iterator[str]:
        """The server's address as the program uses it."""
        if self.rtt_s:
            with delayed(url, self.rtt_s) as far:
                yield far
        else:
            yield url


def programs() -> tuple[Program, ...]:
    """The two programs, over the same documentation."""
    parts = {f"part{n}": text for n, text in enumerate(pieces(PARTS, PART_CHARS))}
    chunks = pieces(CHUNKS, CHUNK_CHARS)
    return (
        Program("refine", "refine, 250 ms away", refine_chain, parts, PARTS, FAR_S),
        Program("map-reduce", "map-reduce, same machine", map_reduce_chain, chunks, CHUNKS + 1),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """One run: its text, its seconds from start to end, and what the server saw."""

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


def run_plain(url: str, program: Program, advance: Callable[[], None]) -> Result:
    """Invoke the chain as it is. Naming a session only groups its calls."""
    with Client(url) as client, program.far_from(url) as far:
        session = client.session()
        llm = ChatWeftline(base_url=far, temperature=0, extra_body={"session_id": session.id})
        chain = program.chain(llm)
        began = time.perf_counter()
        text = chain.invoke(program.input, {"callbacks": [_Count(advance)]})
        seconds = time.perf_counter() - began
        graph = session.graph()
        session.close()
    requests = len(graph["calls"])
    return Result(text, seconds, graph, requests, read_by_client=requests - 1)


def run_compiled(url: str, program: Program, advance: Callable[[], None]) -> Result:
    """Compile the same chain and invoke it: one request, for the whole progress bar."""
    graphs: list[dict[str, Any]] = []
    with program.far_from(url) as far:
        llm = ChatWeftline(base_url=far, temperature=0)
        chain = compile_chain(program.chain(llm), on_graph=graphs.append)
        began = time.perf_counter()
        text = chain.invoke(program.input)
        seconds = time.perf_counter() - began
    for _ in range(program.calls):
        advance()
    inner = [v for v in graphs[0]["variables"] if v["consumers"]]
    reads = sum(v["client_reads"] for v in inner)
    return Result(text, seconds, graphs[0], requests=1, read_by_client=reads)


Way = Callable[[str, Program, Callable[[], None]], Result]
WAYS: Mapping[str, Way] = {"plain LangChain": run_plain, "compiled by weftline": run_compiled}
PLAIN, COMPILED = WAYS
Found = dict[tuple[str, str], list[Result]]  # by program and way


def main() -> int:
    """Run both programs in both ways, print what happened, and draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each, in turns")
    parser.add_argument("--output", type=Path, default=Path("out"))
    args = parser.parse_args()
    console = Console()
    model = str(resolve(DEFAULT_MODEL, progress=for_stream()))
    found = run_in_turns(console, model, args.dtype, args.repeat)
    report(console, found)
    draw(console, found, args.output)
    return verdict(console, found, exact=args.dtype == "float32")


def run_in_turns(console: Console, model: str, dtype: str, repeat: int) -> Found:
    """Run plain, compiled, plain, …, so that other load on the machine slows both ways alike.

    A slow machine gets fewer turns, so that nobody waits for three minutes.
    """
    todo = programs()
    found: Found = {(program.title, way): [] for program in todo for way in WAYS}
    with Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        total = repeat * sum(program.calls for program in todo)
        tasks = {way: progress.add_task(way, total=total) for way in WAYS}
        began = time.monotonic()
        for turn in range(repeat):
            if turn > 0 and time.monotonic() - began > TURNS_S:
                break
            for way, run in WAYS.items():
                with local_server(model, "--dtype", dtype) as url:
                    for program in todo:
                        result = run(url, program, lambda way=way: progress.advance(tasks[way]))
                        found[program.title, way].append(result)
    return found


def median(results: list[Result]) -> Result:
    """The run with the median time."""
    return sorted(results, key=lambda result: result.seconds)[(len(results) - 1) // 2]


def report(console: Console, found: Found) -> None:
    """A summary, the table of what the server saw, and the times."""
    title = next(title for title, _ in found)
    shown = median(found[title, COMPILED])
    console.rule("the refined summary")
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
    for title in dict.fromkeys(title for title, _ in found):
        console.rule(title)
        for way in WAYS:
            runs = found[title, way]
            run, times = median(runs), sorted(run.seconds for run in runs)
            console.print(
                f"{way:>20}: {run.seconds:5.2f} s (of {len(runs)} runs {times[0]:.2f} to "
                f"{times[-1]:.2f}), {run.requests:2} requests, "
                f"{run.read_by_client:2} intermediate values through the client",
                soft_wrap=True,
            )
        ratio = median(found[title, PLAIN]).seconds / median(found[title, COMPILED]).seconds
        console.print(f"{'ratio':>20}: {ratio:5.2f}")


def draw(console: Console, found: Found, folder: Path) -> None:
    """One picture for each program: both ways, one below the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs():
        file = folder / f"{program.name}.svg"
        charts = {f"{program.title}, {w}": median(found[program.title, w]).graph for w in WAYS}
        file.write_text(timeline.svg(charts))
        console.print(f"timeline: {file}", soft_wrap=True)


def verdict(console: Console, found: Found, exact: bool) -> int:
    """0, or 1 with the reason: a value reached the client, or two float32 texts differ."""
    texts: dict[str, set[str]] = {title: set() for title, _ in found}
    for (title, _), runs in found.items():
        texts[title].update(run.text for run in runs)
    same = all(len(said) == 1 for said in texts.values())
    console.print("texts:", "equal" if same else "not equal (bfloat16 parts between batches)")
    results = [run for runs in found.values() for run in runs]
    if any(result.requests == 1 and result.read_by_client for result in results):
        console.print("[red]an intermediate value reached the client[/red]")
        return 1
    if exact and not same:
        console.print("[red]in float32 both ways must say the same[/red]")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
