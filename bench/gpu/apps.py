"""Runs applications of the Parrot paper on a GPU's embedded engine: figures 11, 14, 17 and 18.

The server's own sessions, passes and policy run in this process, without HTTP, on a model of random
weights. The client is a round trip away and has one of two policies. "app" sends each application's
graph at once. "request" makes every call by itself, to a server that knows no applications. Keys
and values are shared as in figures 15 and 16: "tree", "blocks" or "off".
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.gpu import llama
from tests.simulator.programs import Program, Step, by_client, chain, map_reduce, perform
from tests.simulator.world import World, serving
from weftline_engine import api
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.device_model import DeviceModel
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_engine.pretend.simulation import words_tokenizer
from weftline_server.prompt import prompter

FIGURES = (11, 14, 17, 18)
SHARING = ("tree", "blocks", "off")
POLICIES = ("app", "request")
ROUND_TRIP_S = 0.25
WORDS = 2048
LLAMA_13B = replace(
    llama.LLAMA_7B, hidden=5120, layers=40, heads=40, kv_heads=40, mlp=13824, context_limit=16384
)
LLAMA_7B = replace(llama.LLAMA_7B, context_limit=16384)
TINY = replace(llama.TINY, vocabulary=WORDS, context_limit=512)
PAPER: Mapping[str, Any] = json.loads(
    (Path(__file__).parents[1] / "workloads" / "parrot_workloads.json").read_text()
)


class WordTokenizer:
    """A tokenizer of the words w0, w1, … for the server: the machine may lack `tokenizers`."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        found = list(re.finditer(r"\S+", text))
        return SimpleNamespace(
            ids=[int(one[0][1:]) for one in found], offsets=[one.span() for one in found]
        )

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Any]:
        return [self.encode(text) for text in texts]

    def token_to_id(self, token: str) -> int | None:
        return None

    def id_to_token(self, id: int) -> str:
        return f"w{id} "

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def to_str(self) -> str:
        return ""


class WordDetokenizer(llama.Silent):
    """Turns each token into one word, so that a call that reads an answer has its token count."""

    def push(self, tokens: Sequence[int]) -> str:
        return "".join(f"w{token % WORDS} " for token in tokens)


class CoreEngine:
    """The embedded engine in this process; the event loop runs between two steps."""

    def __init__(self, core: Core, folder: Path, *, shares: bool) -> None:
        self.computed = self.prompted = 0  # prompt tokens
        self._core, self._folder, self._shares = core, folder, shares
        self._wake = asyncio.Event()
        self._closed = False

    async def start(self) -> api.Description:
        config = self._core.config
        return api.Description(
            model="dummy",
            tokenizer=str(words_tokenizer(self._folder, WORDS)),
            context_limit=self._core.limit,
            kv_tokens=config.blocks * config.block_size,
            max_running=config.max_running,
        )

    def submit(self, op: api.Op) -> None:
        # An op with a salt of its own shares no KV block.
        self._tell(self._core.submit, op if self._shares else replace(op, salt=op.id))

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        self._tell(self._core.feed, op, offset, part, last)

    def update(self, op: str, hints: api.Hints) -> None:
        self._tell(self._core.update, op, hints)

    def cancel(self, op: str) -> None:
        self._tell(self._core.cancel, op)

    def retain(self, context: str, retention: api.Retention) -> None:
        self._tell(self._core.retain, context, retention)

    def free(self, context: str) -> None:
        self._tell(self._core.free, context)

    def _tell(self, verb: Callable[..., None], *arguments: Any) -> None:
        verb(*arguments)
        self._wake.set()

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while not self._closed:
            if not self._core.busy:
                self._wake.clear()
                await self._wake.wait()
                continue
            if events := self._core.step():
                for event in events:
                    if isinstance(event, api.Finished):
                        self.prompted += event.usage.prompt_tokens
                        self.computed += event.usage.prompt_tokens - event.usage.cached_tokens
                yield events
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed = True
        self._wake.set()


@dataclass(frozen=True, slots=True)
class Point:
    """The applications of a point, and the seconds at which they start."""

    name: str
    programs: Sequence[Program]
    starts: Sequence[float]


def points(figure: int, dry: bool) -> list[Point]:
    """The points of a figure, the most important first. There are fewer than in the paper, to stay
    within the time; a dry run has one of each shape."""
    if figure == 17:
        return [_gpts(2.0, 2, 100)] if dry else [_gpts(rate, 24, 1) for rate in (2.0, 4.0, 1.0)]
    if figure == 18:
        paper = PAPER["fig18_metagpt"]
        task, output = paper["code"]["prompt"], paper["review"]["output"]
        made = [(2, 16, (2, 3))] if dry else [(8, task, output), (4, task, output)]
        return [Point(f"{one[0]} files", [team(*one)], [0.0]) for one in made]
    chunks, size = (2, 20) if dry else (20, 1024)
    return [
        Point(
            f"output {n}",
            [chain(chunks, size, n) if figure == 11 else map_reduce(chunks, size, n)],
            [0.0],
        )
        for n in ((2,) if dry else (50, 100, 25))
    ]


def _gpts(rate: float, users: int, shorter: int) -> Point:
    """Users of four applications with a system prompt each, who arrive at random."""
    rng, at = random.Random(0), 0.0
    programs, starts = [], []
    for number in range(users):
        app = PAPER["fig17_gpts"]["apps"][number % 4]
        at += rng.expovariate(rate)
        starts.append(at)
        role, output = f"gpts {number % 4}", max(2, app["output"] // (4 * shorter))
        shared = app["prompt"] // shorter
        programs.append([Step(own=app["query"], output=output, role=role, shared=shared)])
    return Point(f"{rate:g} a second", programs, starts)


def team(files: int, task: int, output: Sequence[int]) -> Program:
    """An architect, a coder for each file, then a reviewer and a reviser for each file.

    Every prompt begins with the task and all texts written before. The paper has four cycles of
    reviews and revisions, this has one.
    """

    def step(number: int, *reads: int) -> Step:
        tokens = output[0] + (output[1] - output[0]) * number // max(1, files - 1)
        return Step(own=8, output=tokens, reads=reads, late_text=True, role="task", shared=task)

    found = [step(0)]
    written = range(1, files + 1)
    found += [step(number, 0) for number in range(files)]
    found += [step(number, 0, *written) for number in range(files)]
    reviews = range(1 + files, 1 + 2 * files)
    return [*found, *(step(i, 0, *written, reviews[i]) for i in range(files))]


async def _measured(made: World, point: Point, policy: str, round_trip_s: float) -> dict[str, Any]:
    async def one(number: int, program: Program, start: float) -> tuple[float, int]:
        await asyncio.sleep(start)
        began = time.perf_counter()
        if policy == "app":
            await asyncio.sleep(round_trip_s)
            await perform(made, program, number)
        else:
            await by_client(made, program, number, round_trip_s)
        return time.perf_counter() - began, sum(step.output for step in program)

    jobs = zip(range(len(point.programs)), point.programs, point.starts, strict=True)
    found = await asyncio.gather(*(one(*job) for job in jobs))
    return {
        "mean_latency_s": statistics.fmean(seconds for seconds, _ in found),
        "ms_a_token": 1e3 * statistics.fmean(seconds / tokens for seconds, tokens in found),
    }


def measure(
    network: TorchModel, point: Point, sharing: str, policy: str, *, blocks: int, dry: bool
) -> dict[str, Any]:
    """Run the point on an engine of its own with a cold cache."""
    running = 4 if dry else 64
    model = DeviceModel(network, max_running=running, capture=llama.captures(network.device))
    config = SchedulerConfig(
        blocks=blocks,
        block_size=llama.BLOCK,
        max_running=running,
        step_tokens=64 if dry else 2048,
    )
    core = Core(model, config, WordDetokenizer(), tree_attention=sharing == "tree")
    model.warm(core.cache)

    async def main() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            engine = CoreEngine(core, Path(folder), shares=sharing != "off")
            loop = asyncio.get_running_loop()
            async with serving(loop, {"gpu": lambda: engine}, policy=policy) as made:
                found = await _measured(made, point, policy, 0.01 if dry else ROUND_TRIP_S)
            return {**found, "cached": 1 - engine.computed / max(1, engine.prompted)}

    return asyncio.run(main())


def rows(figure: int, device: torch.device, deadline: float, dry: bool) -> Iterator[dict[str, Any]]:
    """A row for every point, way of sharing and policy of a figure. Rows for which the time was too
    short say so."""
    # The prompts are the simulator's words, and the tokenizers package may be missing.
    prompter._load_tokenizer = lambda path: WordTokenizer()  # type: ignore[return-value]
    config = TINY if dry else LLAMA_13B if figure in (11, 14) else LLAMA_7B
    network = llama.load(config, device)
    blocks = 64
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] - 6 * 2**30
        blocks = free // (llama.token_bytes(config) * llama.BLOCK)
    longest = 0.0
    for point in points(figure, dry):
        for sharing in SHARING:
            for policy in POLICIES:
                row: dict[str, Any] = {"point": point.name, "sharing": sharing, "policy": policy}
                began = time.monotonic()
                if began + longest > deadline:
                    row["left_out"] = "for time"
                else:
                    row |= measure(network, point, sharing, policy, blocks=blocks, dry=dry)
                    longest = max(longest, time.monotonic() - began)
                llama.release(device)
                yield row
