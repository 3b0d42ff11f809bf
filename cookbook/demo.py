"""The demo: two LangChain summaries of this repository's documentation, plain and accelerated, and
an agent with slow tools.

    python cookbook/demo.py [--details] [--dtype bfloat16|float32] [--seconds 20] [--turns 2]

The first chain refines a summary with each part of a text. A proxy in this process keeps its server
250 ms away. Each call waits for the one before it, and in plain LangChain also for a round trip.
The second chain summarises parts in parallel and joins the summaries, on a server of the same
machine. When accelerated, each chain is one request: LangChain runs, and the server has begun.
The agent searches for the weather of three towns. A search takes 0.5 to 1.5 s, and starts after the
model's turn, or early: when its call is written. The small model cannot call tools well, so that a
script takes its place, which writes 50 words a second.

Each way has a server of its own, and each turn has a text of its own, so nothing is found in a KV
cache. Requests of a fixed size measure the machine first. The texts are as long as fits into
`--seconds`. There are at least two turns, and the way that begins alternates.

It exits with 1 if two texts differ in float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx2
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_text_splitters import RecursiveCharacterTextSplitter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from langchain_weftline import ChatWeftline, accelerate
from weftline import Client, timeline
from weftline.delay import delayed
from weftline.local import local_server
from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(
    f"docs/{name}.md" for name in ("concepts", "serving", "engine", "engines", "benchmarks")
)

COLUMNS = ("call", "queue ms", "fill cached", "fill computed", "generate ms", "out", "round trips")

PARTS = 8  # of the first chain's text
FAR_S = 0.25  # a round trip over the internet to a hosted model (Parrot, section 8.1: 0.2 to 0.3)
TEMPLATE, TOKEN_CHARS = (
    20,
    4.4,
)  # tokens of a prompt around the text; characters of a token of prose
TURNS = (2, 3)  # at least and at most: the pages hold three long texts
NOISE = 1.5  # equal requests that differ by more say that others use the machine
KV_TOKENS = 16_384  # a server's KV cache: both servers fit beside each other

TITLES = {"refine": "refine, 250 ms away", "map-reduce": "map-reduce, here"}

FIRST = ChatPromptTemplate.from_template("Summarise in one sentence:\n\n{part0}")
MAP = ChatPromptTemplate.from_messages([("human", "Summarise in one sentence:\n\n{text}")])
REDUCE = ChatPromptTemplate.from_messages([("human", "{notes}\n\nWrite a summary of this text.")])


@dataclass(frozen=True, slots=True)
class Size:
    """How long the texts and the answers are, in characters and in tokens."""

    part: int  # of the refined text
    refined: int  # tokens of each summary
    chunks: int  # of the mapped text
    chunk: int
    note: int  # tokens of each chunk's summary
    final: int  # tokens of the summary of summaries


# The longest is for a machine with AVX-512, the last for two slow cores that run other programs.
SIZES = (
    Size(part=400, refined=24, chunks=10, chunk=900, note=48, final=96),
    Size(part=300, refined=20, chunks=10, chunk=600, note=32, final=64),
    Size(part=200, refined=16, chunks=8, chunk=400, note=24, final=48),
    Size(part=120, refined=12, chunks=6, chunk=300, note=16, final=32),
    Size(part=80, refined=8, chunks=4, chunk=200, note=12, final=16),
)


@dataclass(slots=True)
class Speed:
    """What one request costs on this machine; `probes` are the seconds of equal requests."""

    prompt_s: float  # of a token of a prompt
    output_s: float  # of a token of an answer
    probes: list[float] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """The slowest of the equal requests over the fastest."""
        return max(self.probes) / min(self.probes)

    def refine_call_s(self, size: Size) -> float:
        """A call of the first chain."""
        prompt = size.part / TOKEN_CHARS + size.refined + TEMPLATE
        return prompt * self.prompt_s + size.refined * self.output_s

    def map_reduce_s(self, size: Size) -> float:
        """The second chain. Answers side by side take about twice as long as one of them."""
        prompts = size.chunks * (size.chunk / TOKEN_CHARS + TEMPLATE + size.note) + TEMPLATE
        return prompts * self.prompt_s + (2 * size.note + size.final) * self.output_s

    def turn_s(self, size: Size) -> float:
        """Both chains in both ways."""
        return 2 * (PARTS * (self.refine_call_s(size) + FAR_S) + self.map_reduce_s(size))


def plan(speed: Speed, budget_s: float) -> tuple[Size, int]:
    """The longest texts whose two turns fit into the budget, and how many turns fit then.

    A refine call takes a second at most: on a hosted model, too, a round trip is a quarter of it.
    """
    for size in SIZES:
        turn_s = speed.turn_s(size)
        if speed.refine_call_s(size) <= 4 * FAR_S and TURNS[0] * turn_s <= budget_s:
            break
    return size, min(max(int(budget_s / turn_s), TURNS[0]), TURNS[1])


def pieces(count: int, chars: int, turn: int) -> list[str]:
    """`count` pieces of the documentation's prose, of up to `chars` characters, of a turn's own."""
    text = "\n\n".join(prose((ROOT / page).read_text()) for page in PAGES)
    splitter = RecursiveCharacterTextSplitter(chunk_size=chars, chunk_overlap=0)
    found = splitter.split_text(text)[turn * count : (turn + 1) * count]
    assert len(found) == count, "the pages hold too little text"
    return found


def prose(markdown: str) -> str:
    """The paragraphs of a page: a model of 135M parameters understands little of code and
    tables."""
    marks = ("    ", "|", "#", "- ", "```")
    lines = (line for line in markdown.splitlines() if not line.startswith(marks))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def refine_chain(size: Size, llm: ChatWeftline) -> Runnable[Any, str]:
    """A plain LangChain chain over {"part0": text, …}; only `llm` knows of weftline."""
    short = llm.bind(max_tokens=size.refined)
    chain: Runnable[Any, Any] = RunnablePassthrough.assign(
        summary=FIRST | short | StrOutputParser()
    )
    for number in range(1, PARTS):
        refine = ChatPromptTemplate.from_template(
            f"{{summary}}\n\nRefine this summary with:\n\n{{part{number}}}"
        )
        chain = chain.assign(summary=refine | short | StrOutputParser())
    return chain | itemgetter("summary")


def map_reduce_chain(size: Size, llm: ChatWeftline) -> Runnable[Any, str]:
    """A plain LangChain chain over [text, …]; only `llm` knows of weftline."""
    each = MAP | llm.bind(max_tokens=size.note) | StrOutputParser()
    final = REDUCE | llm.bind(max_tokens=size.final) | StrOutputParser()
    return each.map() | (lambda notes: {"notes": "\n\n".join(notes)}) | final


@dataclass(frozen=True, slots=True)
class Program:
    """A chain with its input, the number of its calls, and the round trip to its server."""

    title: str
    chain: Callable[[ChatWeftline], Runnable[Any, str]]
    input: Any
    calls: int
    rtt_s: float = 0.0

    @contextmanager
    def far_from(self, url: str) -> Iterator[str]:
        """The server's address as seen from the program."""
        if self.rtt_s:
            with delayed(url, self.rtt_s) as far:
                yield far
        else:
            yield url


def programs(size: Size, turn: int) -> tuple[Program, ...]:
    """The two programs, over texts of this turn."""
    parts = {f"part{n}": text for n, text in enumerate(pieces(PARTS, size.part, turn))}
    chunks = pieces(size.chunks, size.chunk, turn)
    return (
        Program(TITLES["refine"], partial(refine_chain, size), parts, PARTS, FAR_S),
        Program(TITLES["map-reduce"], partial(map_reduce_chain, size), chunks, size.chunks + 1),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """A run's text, its seconds, and the graph of calls that the server recorded."""

    text: str
    seconds: float
    graph: dict[str, Any]
    requests: int


class _Count(BaseCallbackHandler):
    """Moves the progress bar at the end of each model call."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self._advance()


def run_plain(url: str, program: Program, advance: Callable[[], None]) -> Result:
    """Invoke the chain unchanged; the session's name only groups its calls."""
    with Client(url) as client, program.far_from(url) as far:
        session = client.session()
        llm = ChatWeftline(base_url=far, temperature=0, extra_body={"session_id": session.id})
        chain = program.chain(llm)
        began = time.perf_counter()
        text = chain.invoke(program.input, {"callbacks": [_Count(advance)]})
        seconds = time.perf_counter() - began
        graph = session.graph()
        session.close()
    return Result(text, seconds, graph, requests=len(graph["calls"]))


def run_accelerated(url: str, program: Program, advance: Callable[[], None]) -> Result:
    """Accelerate the chain, so that its calls are one request."""
    graphs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    with program.far_from(url) as far:
        llm = ChatWeftline(base_url=far, temperature=0)
        chain = accelerate(program.chain(llm), on_graph=graphs.put)
        began = time.perf_counter()
        text = chain.invoke(program.input, {"callbacks": [_Count(advance)]})
        seconds = time.perf_counter() - began
        graph = graphs.get(timeout=30)  # from another thread
    others = program.calls - len(graph["calls"])  # each is a request of its own
    return Result(text, seconds, graph, requests=1 + others)


Way = Callable[[str, Program, Callable[[], None]], Result]
WAYS: Mapping[str, Way] = {"plain LangChain": run_plain, "accelerated by weftline": run_accelerated}
PLAIN, ACCELERATED = WAYS
Found = dict[tuple[str, str], list[Result]]  # by program and way, a result a turn


def main() -> int:
    """Run both programs in both ways, print the results, and write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="what the summaries should take"
    )
    parser.add_argument("--turns", type=int, help="of both ways (default: 2, or 3 if they fit)")
    parser.add_argument("--details", action="store_true", help="also show calls and timelines")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder of timelines")
    args = parser.parse_args()
    console = Console()
    model = str(resolve(DEFAULT_MODEL, progress=for_stream()))
    with ExitStack() as stack:
        serve = partial(local_server, model, "--dtype", args.dtype, "--kv-tokens", str(KV_TOKENS))
        console.print(
            "A LangChain chain waits for the client after each call; inside `accelerate(...)` the "
            "server has begun the next one. Two servers start, one for each way …",
            soft_wrap=True,
        )
        urls = {way: stack.enter_context(serve()) for way in WAYS}
        speed = measure(urls)
        size, turns = plan(speed, args.seconds)
        found = run_in_turns(console, urls, speed, size, args.turns or turns)
    agents = run_agents(console)
    if args.details:
        report(console, found, speed)
        draw(console, found, args.output)
    return verdict(console, found, agents, speed, exact=args.dtype == "float32")


_WORDS, _ANSWER = 64, 8  # of a probe: words of its prompt, tokens of its answer
_FRESH = itertools.count()  # no two probes begin alike


def probe(url: str, tokens: int = _ANSWER) -> tuple[float, int]:
    """Seconds of a request whose size is always the same, and the tokens of its prompt."""
    body = {
        "model": "default",
        "prompt": " ".join([f"{next(_FRESH):04}", *["time"] * _WORDS]),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    began = time.perf_counter()
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()
    return time.perf_counter() - began, answer.json()["usage"]["prompt_tokens"]


def measure(urls: Mapping[str, str]) -> Speed:
    """The speed of a server, once both have answered a first request."""
    for url in urls.values():
        probe(url, 2)
    url = next(iter(urls.values()))
    _, prompt = probe(url, 1)
    short = min(probe(url, 1)[0] for _ in range(2))
    long = [probe(url)[0] for _ in range(2)]
    return Speed(short / prompt, max(min(long) - short, 1e-3) / (_ANSWER - 1), long)


def ways(turn: int) -> list[str]:
    """The ways in the order of a turn: in every other turn the second one begins."""
    return list(WAYS)[:: -1 if turn % 2 else 1]


def run_in_turns(
    console: Console, urls: Mapping[str, str], speed: Speed, size: Size, turns: int
) -> Found:
    """Run the ways in turns, so that other load on the machine affects both alike. A probe before
    each run tells of such load."""
    todo = [programs(size, turn) for turn in range(turns)]
    found: Found = {(program.title, way): [] for program in todo[0] for way in WAYS}
    with Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(24),
        TextColumn("{task.fields[requests]:>3} requests {task.fields[seconds]:6.2f} s"),
        console=console,
    ) as progress:
        bars = {}
        for program in todo[0]:
            for way in WAYS:
                total, name = program.calls * turns, f"{program.title}, {way.split()[0]}"
                bars[program.title, way] = progress.add_task(
                    name, total=total, requests=0, seconds=0.0
                )
        for some in todo:
            for program in some:
                _run_ways(program, urls, speed, found, progress, bars)
    return found


def _run_ways(
    program: Program,
    urls: Mapping[str, str],
    speed: Speed,
    found: Found,
    progress: Progress,
    bars: Mapping[tuple[str, str], Any],
) -> None:
    """Run a program in both ways, and show what each has taken so far."""
    turn = len(found[program.title, PLAIN])
    for way in ways(turn):
        speed.probes.append(probe(urls[way])[0])
        bar, runs = bars[program.title, way], found[program.title, way]
        runs.append(WAYS[way](urls[way], program, partial(progress.advance, bar)))
        spent = sum(run.seconds for run in runs)
        progress.update(bar, seconds=spent, requests=sum(run.requests for run in runs))


def median(results: list[Result]) -> Result:
    """The run with the median time; of two runs the faster one."""
    return sorted(results, key=lambda result: result.seconds)[(len(results) - 1) // 2]


def ratio(found: Found, title: str) -> float:
    """Plain over accelerated: the median of the turns, each of which has its own text."""
    pairs = zip(found[title, PLAIN], found[title, ACCELERATED], strict=True)
    return statistics.median(plain.seconds / ours.seconds for plain, ours in pairs)


def report(console: Console, found: Found, speed: Speed) -> None:
    """Print a summary, and the table of the server's calls."""
    title = next(title for title, _ in found)
    shown = median(found[title, ACCELERATED])
    console.rule("the refined summary")
    console.print(shown.text.strip(), markup=False)
    console.rule("the calls of the accelerated chain, as the server saw them")
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
    console.print(
        f"equal requests took {min(speed.probes):.2f} to {max(speed.probes):.2f} s", soft_wrap=True
    )


def draw(console: Console, found: Found, folder: Path) -> None:
    """Write a picture for each program, with both ways one below the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, title in TITLES.items():
        file = folder / f"{name}.svg"
        charts = {f"{title}, {way}": median(found[title, way]).graph for way in WAYS}
        file.write_text(timeline.svg(charts))
        console.print(f"timeline: {file}", soft_wrap=True)


def gains(found: Found) -> str:
    """The gains of both programs in one line."""
    far, near = TITLES.values()
    plain, ours = (median(found[far, way]).requests for way in WAYS)
    return (
        f"{ours} request instead of {plain}: {ratio(found, far):.2f} times as fast 250 ms away. "
        f"{median(found[near, ACCELERATED]).requests} instead of "
        f"{median(found[near, PLAIN]).requests}: {ratio(found, near):.2f} times as fast on this "
        "machine."
    )


@dataclass(frozen=True, slots=True)
class Agents:
    """The answers and the seconds of the agent with tools after the turn, and with early ones."""

    late: tuple[str, float]
    early: tuple[str, float]

    def __str__(self) -> str:
        return f"An agent's slow tools, started early: {self.late[1] / self.early[1]:.2f} times."


def run_agents(console: Console) -> Agents:
    """Run the agent of cookbook/tools in both ways, on a server that has no model."""
    own = {name: value for name, value in os.environ.items() if name != "WEFTLINE_BASE_URL"}
    done = subprocess.run(
        [sys.executable, ROOT / "cookbook" / "tools" / "langchain_agent.py", "--short"],
        env=own,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    found = Agents(*map(tuple, json.loads(done.stdout).values()))
    for name, (_, seconds) in (("plain", found.late), ("early", found.early)):
        console.print(
            f"{f'agent, slow tools, {name}':<34} {'━' * 24}   2 requests {seconds:6.2f} s",
            soft_wrap=True,
            highlight=False,
        )
    return found


def verdict(console: Console, found: Found, agents: Agents, speed: Speed, exact: bool) -> int:
    """Print the last line. The exit code is 1, with the reason, if two float32 texts differ."""
    titles = {title for title, _ in found}
    same = agents.late[0] == agents.early[0] and all(
        plain.text == ours.text
        for title in titles
        for plain, ours in zip(found[title, PLAIN], found[title, ACCELERATED], strict=True)
    )
    if exact and not same:
        console.print("[red]in float32 both ways must give the same text[/red]")
        return 1
    if speed.spread > NOISE:
        console.print(
            "Other programs use this machine, so the ratios may be off; run it again.",
            soft_wrap=True,
        )
    texts = "Same texts" if same else "Texts differ, because bfloat16 rounds by the batch"
    console.print(f"{texts}, {gains(found)} {agents}", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
