"""Simulates LAMPS's mix of six tools on one engine: agents come at a rate; clients run the tools.

Answers end by themselves, long before the bound that the clients send, as those of models do.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from tests.simulator.world import World, serving
from weftline.contract.protocol import (
    Call,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
    SubmitBody,
)
from weftline.contract.tools import Function, Tool
from weftline_engine import api
from weftline_engine.bookkeeping.op_table import Live
from weftline_engine.bookkeeping.output import Sampled
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost, asking
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.schedule.lengths import Exactness

# GPT-J-6B on an A100, as LAMPS measured it.
GPTJ = StepCost(step_s=0.01692, fill_s=4.08e-5, sequence_s=4.08e-5, copy_s=1.8e-5)
WORDS, BOUND = 2048, 512
MOST_TOKENS = 2048  # of a request, as in both papers' experiments


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer of `output` tokens. Unless it is the last one, a tool runs for `pause_s`."""

    output: int
    pause_s: float = 0.0
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Class:
    """Means and deviations of a class: its share, the calls of a request, the seconds of a tool,
    and the tokens of the first prompt, of an answer and of a tool's result."""

    name: str
    share: int
    calls: tuple[float, float]
    pause_s: tuple[float, float]
    prompt: tuple[float, float]
    output: tuple[float, float]
    returned: tuple[float, float]


# Calls and seconds are of the table in InferCept and LAMPS, and lengths of the published traces.
MIX = (
    Class("math", 98, (3.75, 1.3), (9e-5, 6e-5), (405, 18), (125, 139), (21, 5)),
    Class("chatbot", 65, (4.45, 1.96), (28.6, 15.6), (117, 291), (118, 158), (42, 110)),
    Class("qa", 50, (2.52, 1.73), (0.69, 0.17), (934, 7), (183, 137), (57, 9)),
    Class("tts", 65, (6.91, 3.93), (17.24, 7.6), (117, 291), (34, 28), (25, 80)),
    Class("ve", 54, (5.35, 1.0), (0.09, 0.014), (1973, 0), (4, 0), (10, 11)),
    Class("image", 65, (6.91, 3.93), (20.03, 7.8), (117, 291), (34, 28), (25, 80)),
)


@dataclass(frozen=True, slots=True)
class Request:
    kind: str
    prompt: int
    turns: tuple[Turn, ...]


def drawn(number: int) -> Request:
    """A request of the mix. It ends with the turn that would exceed MOST_TOKENS."""
    rng = random.Random(f"lamps {number}")
    kind = rng.choices(MIX, [one.share for one in MIX])[0]
    calls = max(1, round(rng.gauss(*kind.calls)))
    most = MOST_TOKENS - 16 if kind.name == "ve" else MOST_TOKENS // 2
    prompt = min(_tokens(rng, kind.prompt), most)
    turns: list[Turn] = []
    left = MOST_TOKENS - prompt
    for number in range(calls + 1):
        output, returned = _tokens(rng, kind.output), _tokens(rng, kind.returned)
        pause_s = _log_normal(rng, *kind.pause_s)
        if number == calls or output + returned + 2 > left:
            turns.append(Turn(max(2, min(output, left, BOUND))))
            break
        turns.append(Turn(min(output, BOUND), pause_s, returned))
        left -= output + returned
    return Request(kind.name, prompt, tuple(turns))


def _tokens(rng: random.Random, of: tuple[float, float]) -> int:
    return max(2, round(_log_normal(rng, *of)))


def _log_normal(rng: random.Random, mean: float, deviation: float) -> float:
    """Positive, with this mean and deviation."""
    if not deviation:
        return mean
    variance = math.log(1 + (deviation / mean) ** 2)
    return rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))


class EndsByItself(SimulatedEngine):
    """An engine whose answers have their own lengths, by session, below the bounds."""

    def __init__(self, config: SimulatedConfig, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, loop.time)
        self.lengths: dict[str, int] = {}

    def _sampled(self, live: Live) -> Sampled:
        """The last word calls a tool if the prompt asks for that, whatever the bound is."""
        sequence, words = live.sequence, self.config.words
        sampled = super()._sampled(live)
        if sequence.output < self.lengths[sequence.op.hints.application] - 1:
            return sampled
        asked = sequence.tokens[sequence.prompt - 1] - words - len(MIX)
        is_call = 0 <= asked < len(MIX) and live.params.pause_on
        return Sampled(words + asked if is_call else sampled.token, {}, ended=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The mean seconds of a request without its tools, and how its lengths were predicted."""

    serving_s: float
    lengths: Exactness | None


def simulate(
    rate: float, window_s: float, seed: int, without: frozenset[str] = frozenset()
) -> Outcome:
    """Run what comes in the window at `rate` requests a second, to the end."""
    config = SimulatedConfig(
        cost=GPTJ,
        kv_tokens=16_384,
        max_running=128,
        step_tokens=384,
        beside_tokens=384,
        words=WORDS,
        tools=tuple(one.name for one in MIX),
    )

    async def main(loop: VirtualLoop) -> Outcome:
        engine = EndsByItself(config, loop)

        def make() -> api.Engine:
            return engine

        async with serving(loop, {"e": make}, without=without) as made:
            requests = (
                _request(made, engine, number, at)
                for number, at in enumerate(_arrivals(rate, window_s, seed), seed * 100_000)
            )
            took = await asyncio.gather(*requests)
            lengths = made.driver.dispatcher.lengths
            return Outcome(fmean(took), None if lengths is None else lengths.exactness)

    return run(main)


def _arrivals(rate: float, window_s: float, seed: int) -> Iterator[float]:
    rng, now = random.Random(f"arrivals {seed}"), 0.0
    while now < window_s:
        yield now
        now += rng.expovariate(rate)


async def _request(made: World, engine: EndsByItself, number: int, at: float) -> float:
    """Run one request to its end; its seconds without its tools."""
    request, rng = drawn(number), random.Random(number)
    await asyncio.sleep(at)
    said = _text(rng, request.prompt - 1)
    session = made.driver.open("agents")
    for index, turn in enumerate(request.turns):
        is_last = index + 1 == len(request.turns)
        said += _text(rng, 1) if is_last else f"{asking(request.kind)} "
        engine.lengths[session.id] = turn.output
        call = _call(said, f"v{index}")
        await made.driver.submit(session, SubmitBody(calls=(call,)))
        answer = await made.driver.readers.get(session, f"v{index}")
        await asyncio.sleep(turn.pause_s)
        said += answer.text + _text(rng, max(0, turn.returned - 1))
    made.driver.close(session)
    return made.now - at - sum(turn.pause_s for turn in request.turns)


def _call(said: str, variable: str) -> Call:
    """A turn of an agent that may call each of the tools: all have one template."""
    sampling = Sampling(max_tokens=BOUND, temperature=0.0)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=variable, sampling=sampling)
    prompt = (
        Message(role="system", content=(Segment(text="Use your tools."),)),
        Message(role="user", content=(Segment(text=said),)),
        Message(role="assistant", content=(Segment(output="o"),)),
    )
    tools = tuple(
        Tool(function=Function(name=one.name, parameters={"type": "object"})) for one in MIX
    )
    return Call(name="turn", prompt=prompt, placeholders=(out,), tools=tools)


def _text(rng: random.Random, count: int) -> str:
    return "".join(f"w{rng.randrange(WORDS)} " for _ in range(count))
