"""LAMPS's requests with tools on one simulated engine: under its order, InferCept's, or the server.

All run the same engine, with its block pool, batches and prefix tree. A paper's policy uses its
verbs directly. A context that is discarded is continued under another salt, so that nothing of it
is found. The server runs with its sessions, passes and memory; its clients are agents that come
back with the whole conversation. Lengths and pauses are drawn from published figures.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tests.simulator.world import World, chatting, usage_of, world
from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost, asking
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.config import OFF_BY_DEFAULT
from weftline_server.schedule.memory.rank import MemoryNeed, token_seconds
from weftline_server.schedule.memory.waste import Load, Strategy, waste

from .direct import Direct, Flight, direct

# No request grows beyond this, as in both papers' experiments.
MOST_TOKENS = 2048
# GPT-J-6B on an A100, as LAMPS measured it; a token's 448 KiB of KV cache take 18 us over PCIe 4.
GPTJ = StepCost(step_s=0.01692, fill_s=4.08e-5, sequence_s=4.08e-5, copy_s=1.8e-5)
WORDS = 2048
MIX_SIZE = 400
# A hundred steps of the queue, in which LAMPS lets a request starve. A step is about 20 ms.
STARVED_S = 2.0
# Of the arrivals: while the load is high, the engine gets no other requests.
WINDOW_S = 60.0
KV_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class Turn:
    """`output` tokens. If `tool` is not empty it then runs for `pause_s`, and returns `returned`
    tokens."""

    output: int
    tool: str = ""
    pause_s: float = 0.0
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """A request: the tokens of its prompt, and its turns. The last has no tool."""

    prompt: int
    turns: tuple[Turn, ...]

    @property
    def paused_s(self) -> float:
        """The seconds of all its tools."""
        return sum(turn.pause_s for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of a class of the papers: their share, and means with deviations."""

    name: str
    share: int
    calls: tuple[float, float]
    pause_s: tuple[float, float]
    prompt: tuple[float, float]
    output: tuple[float, float]
    returned: tuple[float, float]


# Calls and seconds are of the table in InferCept and LAMPS, and lengths of the published traces.
# The calls of ve are those of the traces, which end at 2,048 tokens.
MIX = (
    Kind("math", 98, (3.75, 1.3), (9e-5, 6e-5), (405, 18), (125, 139), (21, 5)),
    Kind("chatbot", 65, (4.45, 1.96), (28.6, 15.6), (117, 291), (118, 158), (42, 110)),
    Kind("qa", 50, (2.52, 1.73), (0.69, 0.17), (934, 7), (183, 137), (57, 9)),
    Kind("tts", 65, (6.91, 3.93), (17.24, 7.6), (117, 291), (34, 28), (25, 80)),
    Kind("ve", 54, (5.35, 1.0), (0.09, 0.014), (1973, 0), (4, 0), (10, 11)),
    Kind("image", 65, (6.91, 3.93), (20.03, 7.8), (117, 291), (34, 28), (25, 80)),
)


def drawn(seed: int) -> Agent:
    """Request number `seed` of the mix. It ends with the turn that would exceed MOST_TOKENS."""
    rng = random.Random(f"lamps {seed}")
    kind = rng.choices(MIX, [one.share for one in MIX])[0]
    calls = max(1, round(rng.gauss(*kind.calls)))
    turns = [
        Turn(
            output=_tokens(rng, kind.output),
            tool=kind.name,
            pause_s=_log_normal(rng, *kind.pause_s),
            returned=_tokens(rng, kind.returned),
        )
        for _ in range(calls)
    ]
    last = Turn(_tokens(rng, kind.output))
    most = MOST_TOKENS // 2 if kind.name != "ve" else MOST_TOKENS - 16
    prompt = min(_tokens(rng, kind.prompt), most)
    left, kept = MOST_TOKENS - prompt, list[Turn]()
    for turn in turns:
        if turn.output + turn.returned + 2 > left:
            last = turn
            break
        kept.append(turn)
        left -= turn.output + turn.returned
    return Agent(prompt, (*kept, Turn(max(2, min(last.output, left)))))


def _tokens(rng: random.Random, of: tuple[float, float]) -> int:
    return max(2, round(_log_normal(rng, *of)))


def _log_normal(rng: random.Random, mean: float, deviation: float) -> float:
    """Positive, with this mean and deviation."""
    if not deviation:
        return mean
    variance = math.log(1 + (deviation / mean) ** 2)
    return rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` requests a second arrive for `window_s` seconds, drawn from `agents` with `seed`."""

    agents: Sequence[Agent]
    rate: float
    window_s: float = WINDOW_S
    seed: int = 0

    def arrivals(self) -> list[tuple[float, Agent]]:
        """When each request comes: the first ones at once, the others after exponential gaps."""
        rng = random.Random(f"arrivals {self.seed}")
        found = [(0.0, rng.choice(self.agents)) for _ in range(int(self.rate) + 1)]
        now = rng.expovariate(self.rate)
        while now < self.window_s:
            found.append((now, rng.choice(self.agents)))
            now += rng.expovariate(self.rate)
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """A request at the start of a turn. It `arrived` first, has a `context`, and will write
    `output` tokens, pause for `pause_s`, and get `returned` tokens."""

    arrived: float
    context: int
    output: int
    pause_s: float
    returned: int


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are ordered, the smallest key first, and after how many seconds in the queue one
    goes first (None: never). At a pause both papers take the strategy with the least waste."""

    key: Callable[[Seen, api.KvCosts, Strategy], float]
    patience_s: float | None = None


def memory_over_time(seen: Seen, costs: api.KvCosts, strategy: Strategy) -> float:
    """LAMPS's rank: the token-seconds up to the end of the pause, and of the context's way back."""
    return token_seconds(
        MemoryNeed(
            tokens=seen.output,
            token_s=costs.step_s,
            held=seen.context,
            pause_s=seen.pause_s,
            strategy=strategy,
            later=seen.returned,
            again_s=costs.fill_s + costs.step_s / costs.chunk,
            copy_s=costs.copy_s,
        )
    )


# `weftline` is the server.
POLICIES: dict[str, Policy | None] = {
    "InferCept": Policy(lambda seen, costs, how: seen.arrived),
    "LAMPS": Policy(memory_over_time, STARVED_S),
    "weftline": None,
}


@dataclass(slots=True)
class Outcome:
    """Of each request the seconds from its arrival to its first token, and to its end without its
    tools. `unfinished` had not ended at the window's end."""

    first_s: list[float] = field(default_factory=list)
    serving_s: list[float] = field(default_factory=list)
    unfinished: int = 0

    @property
    def row(self) -> dict[str, float]:
        """Its figures, in seconds."""
        serving = sorted(self.serving_s)
        return {
            "requests": len(serving),
            "serving_s": round(fmean(serving), 2),
            "serving_p99_s": round(serving[int(0.99 * (len(serving) - 1))], 1),
            "ttft_s": round(fmean(self.first_s), 3),
            "unfinished": self.unfinished,
        }


# Runs request `number`, and returns when its first token came.
Run = Callable[[int, Agent], Awaitable[float]]


def replay(load: Arrivals, policy: Policy | None, kv_tokens: int = KV_TOKENS) -> Outcome:
    """Run all requests to their ends, under `policy` or (None) under the server. Steps have 384
    tokens, as InferCept's."""
    config = SimulatedConfig(
        cost=GPTJ,
        kv_tokens=kv_tokens,
        max_running=128,
        step_tokens=384,
        beside_tokens=384,
        words=WORDS,
        tools=tuple(sorted({turn.tool for one in load.agents for turn in one.turns if turn.tool})),
    )

    async def main(loop: VirtualLoop) -> Outcome:
        if policy is not None:
            async with direct(config, loop) as alone:
                return await _all(load, Ranked(alone, policy, load.seed).run, loop)
        async with world(loop, config, without=OFF_BY_DEFAULT) as made:
            return await _all(load, lambda number, one: _served(made, load, number, one), loop)

    return run(main)


async def _all(load: Arrivals, one: Run, loop: VirtualLoop) -> Outcome:
    outcome = Outcome()

    async def client(number: int, at: float, agent: Agent) -> None:
        await asyncio.sleep(at - loop.time())
        first = await one(number, agent)
        end = loop.time()
        outcome.unfinished += end > load.window_s
        outcome.first_s.append(first - at)
        outcome.serving_s.append(end - at - agent.paused_s)

    arrivals = enumerate(load.arrivals())
    await asyncio.gather(*(client(number, at, agent) for number, (at, agent) in arrivals))
    return outcome


async def _served(made: World, load: Arrivals, number: int, agent: Agent) -> float:
    """Run one agent as a client of the whole server."""
    rng = random.Random(f"{load.seed}/{number}")
    said, first = _text(rng, agent.prompt - 1), 0.0
    session = made.driver.open("agents")
    for at, turn in enumerate(agent.turns):
        said += f"{asking(turn.tool)} " if turn.tool else _text(rng, 1)
        variable = f"v{at}"
        answer = await made.ask(session, chatting(said, variable, turn.tool or "none", turn.output))
        if not at:
            first = usage_of(session, variable).filled
        if turn.tool:
            await asyncio.sleep(turn.pause_s)
        said += answer + _text(rng, max(0, turn.returned - 1))
    made.driver.close(session)
    return first


def _text(rng: random.Random, count: int) -> str:
    return "".join(f"w{rng.randrange(WORDS)} " for _ in range(count))


class Ranked:
    """Requests that use the engine's verbs, in the order of a paper's policy."""

    def __init__(self, made: Direct, policy: Policy, seed: int) -> None:
        self._made = made
        self._policy = policy
        self._seed = seed
        self._begun = 0

    async def run(self, number: int, agent: Agent) -> float:
        """Run one request to its end."""
        engine, rng = self._made.engine, random.Random(f"{self._seed}/{number}")
        arrived, first = self._made.loop.time(), 0.0
        said = [rng.randrange(WORDS) for _ in range(agent.prompt)]
        parent, parent_tokens, salt, stayed = None, 0, f"{number}", False
        for at, turn in enumerate(agent.turns):
            context = f"{number}/{at}"
            seen = Seen(arrived, len(said), turn.output, turn.pause_s, turn.returned)
            strategy = self._strategy(seen)
            hints = self._running(context)
            if not stayed:  # only waiting requests are ranked in both papers' systems
                key = self._policy.key(seen, self._made.costs, strategy)
                hints = api.Hints(application=context, priority=round(key * 1000))
            op = api.Op(
                id=context,
                kind=api.Kind.GENERATE,
                context=context,
                parent=parent,
                tokens=tuple(said[parent_tokens:]),
                sampling=api.SamplingParams(max_tokens=turn.output, ignore_eos=True),
                salt=salt,
                hints=hints,
            )
            flight = await self._ran(op, ranked=not stayed)
            first = first or flight.first or 0.0
            if parent is not None:
                engine.free(parent)
            said += flight.tokens
            if not turn.tool:
                engine.free(context)
                break
            # The last token of an output is not computed yet, so it is a part of what follows.
            parent, parent_tokens = context, len(said) - 1
            stayed = strategy is Strategy.PRESERVE
            if strategy is Strategy.DISCARD:
                engine.free(context)
                parent, parent_tokens, salt = None, 0, f"{number}/{at}"
            elif strategy is Strategy.SWAP:
                engine.retain(context, api.Retention.SWAP)
            await asyncio.sleep(turn.pause_s)
            said += [rng.randrange(WORDS) for _ in range(turn.returned)]
        return first

    def _strategy(self, seen: Seen) -> Strategy:
        running = self._made.engine.book.scheduler.running
        load = Load(len(running), sum(one.computed for one in running))
        return waste(seen.context + seen.output, seen.pause_s, self._made.costs, load).best

    async def _ran(self, op: api.Op, ranked: bool) -> Flight:
        update = self._made.engine.update

        def keep_running() -> None:
            """Put a request that has begun to write before all that wait."""
            update(op.id, self._running(op.id))

        def promote() -> None:
            """Put a request that has waited too long before all others."""
            if flight.first is None:
                first = api.Hints(application=op.id, priority=op.hints.priority - 10**12)
                update(op.id, first)

        flight = self._made.send(op, keep_running if ranked else None)
        if ranked and self._policy.patience_s is not None:
            later = self._made.loop.call_later(self._policy.patience_s, promote)
            await flight.ended
            later.cancel()
        await flight.ended
        return flight

    def _running(self, context: str) -> api.Hints:
        """Those of a running request: the order of beginning."""
        self._begun += 1
        return api.Hints(application=context, priority=self._begun - 2 * 10**12)
