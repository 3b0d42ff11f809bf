"""Replays requests with tools on one simulated engine: under a paper's policy, or under the server.

Both run the same engine, with its block pool, batches and prefix tree. A paper's policy uses its
verbs directly. A context that is discarded is continued under another salt, so that nothing of it
is found. The server runs with its sessions, passes and memory; its clients are agents that come
back with the whole conversation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from bench.simulator.world import World, world
from weftline.protocol import Call, InOut, Message, Placeholder, Sampling, Segment, Submit
from weftline.tools import Function, Tool
from weftline_engine import api
from weftline_engine.simulated import SimulatedConfig, SimulatedEngine, StepCost, asking
from weftline_engine.virtual_time import VirtualLoop, run
from weftline_server.schedule.memory.lengths import Expected, Lengths
from weftline_server.schedule.memory.pauses import Pauses
from weftline_server.schedule.memory.waste import Load, Strategy

from .policies import Policy, Seen
from .trace import Agent, Turn

# GPT-J-6B on an A100, as LAMPS measured it; a token's 448 KiB of KV cache take 18 us over PCIe 4.
GPTJ = StepCost(step_s=0.01692, fill_s=4.08e-5, sequence_s=4.08e-5, copy_s=1.8e-5)
WORDS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`rate` requests a second arrive for `window_s` seconds, drawn from `agents` with `seed`.

    Predictions of lengths and pauses are off by a normal share `error`.
    """

    agents: Sequence[Agent]
    rate: float
    window_s: float
    error: float = 0.0
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
class Ended:
    """A request's seconds from its arrival to its first token and to its end, and its tools'."""

    kind: str
    arrived: float
    first_s: float
    seconds: float
    paused_s: float


@dataclass(slots=True)
class Outcome:
    """All requests of a replay, those that had not ended at the window's end, and the share of the
    prompts' tokens that was computed again."""

    ended: list[Ended] = field(default_factory=list)
    unfinished: int = 0
    again: float = 0.0

    @property
    def row(self) -> dict[str, float]:
        """Its figures in seconds. `serving_s` leaves the tools' time out."""
        seconds = sorted(one.seconds for one in self.ended)
        first = sorted(one.first_s for one in self.ended)
        return {
            "requests": len(seconds),
            "mean_s": round(fmean(seconds), 2),
            "p99_s": round(seconds[int(0.99 * (len(seconds) - 1))], 1),
            "serving_s": round(fmean(one.seconds - one.paused_s for one in self.ended), 2),
            "ttft_s": round(fmean(first), 3),
            "ttft_p99_s": round(first[int(0.99 * (len(first) - 1))], 2),
            "unfinished": self.unfinished,
            "again": round(self.again, 3),
        }


def config(kv_tokens: int, tools: Sequence[str] = (), host_tokens: int = 0) -> SimulatedConfig:
    """The engine of a replay: steps of 384 tokens, as InferCept's."""
    return SimulatedConfig(
        cost=GPTJ,
        kv_tokens=kv_tokens,
        max_running=128,
        step_tokens=384,
        beside_tokens=384,
        words=WORDS,
        host_tokens=host_tokens,
        tools=tuple(tools),
    )


def replay(
    load: Arrivals,
    policy: Policy | None,
    kv_tokens: int,
    host_tokens: int = 0,
    without: frozenset[str] = frozenset(),
) -> Outcome:
    """Run all requests to their ends, under `policy` or (None) under the server."""
    tools = sorted({turn.tool for one in load.agents for turn in one.turns if turn.tool})
    engine_config = config(kv_tokens, tools, host_tokens)

    async def papers(loop: VirtualLoop) -> Outcome:
        assert policy is not None
        async with _alone(engine_config, loop, policy, load) as bench:
            return await _all(load, bench.run, loop, [bench.engine])

    async def ours(loop: VirtualLoop) -> Outcome:
        rng = random.Random(f"predictions {load.seed}")
        lengths = OffLengths(load.error, rng) if load.error else None
        async with world(loop, engine_config, without=without, lengths=lengths) as made:
            if load.error:
                made.driver.dispatcher.memory.pausing.pauses = OffPauses(load.error, rng)
            server = _Server(made, load)
            return await _all(load, server.run, loop, made.engines)

    return run(ours if policy is None else papers)


class OffPauses(Pauses):
    """The server's predictor of pauses, whose predictions are off by a normal `share`."""

    def __init__(self, share: float, rng: random.Random) -> None:
        super().__init__()
        self._share, self._rng = share, rng

    def expect(self, tenant: str, tools: Iterable[str]) -> float | None:
        """`Pauses.expect`"""
        found = super().expect(tenant, tools)
        return None if found is None else max(1e-9, found * off(self._rng, self._share))


class OffLengths(Lengths):
    """Predicts that an output fills its bound, as it does in a replay, off by a normal `share`."""

    def __init__(self, share: float, rng: random.Random) -> None:
        super().__init__()
        self._share, self._rng = share, rng

    def expect(self, tenant: str, template: str, bound: int) -> Expected | None:
        """`Lengths.expect`"""
        length = max(1, round(bound * off(self._rng, self._share)))
        return Expected(length, length)


def off(rng: random.Random, share: float) -> float:
    """What a prediction that is off by a normal `share` is multiplied with."""
    return 1 + rng.gauss(0, share)


class Runs(Protocol):
    """Runs request `number`, and returns when its first token came."""

    async def __call__(self, number: int, agent: Agent) -> float: ...


async def _all(
    load: Arrivals, one: Runs, loop: VirtualLoop, engines: list[SimulatedEngine]
) -> Outcome:
    outcome = Outcome()
    needed = 0

    async def client(number: int, at: float, agent: Agent) -> None:
        await asyncio.sleep(at - loop.time())
        first = await one(number, agent)
        end = loop.time()
        outcome.unfinished += end > load.window_s
        outcome.ended.append(Ended(agent.kind, at, first - at, end - at, agent.paused_s))

    arrivals = load.arrivals()
    for _, agent in arrivals:
        needed += agent.prompt + sum(turn.returned + 1 for turn in agent.turns[:-1])
    await asyncio.gather(*(client(i, at, agent) for i, (at, agent) in enumerate(arrivals)))
    outcome.again = max(0.0, 1 - needed / sum(engine.computed for engine in engines))
    return outcome


class _Server:
    """Agents as clients of the whole server."""

    def __init__(self, made: World, load: Arrivals) -> None:
        self._made = made
        self._load = load

    async def run(self, number: int, agent: Agent) -> float:
        """Run one agent to its end."""
        made, rng = self._made, random.Random(f"{self._load.seed}/{number}")
        said, first = _text(rng, agent.prompt - 1), 0.0
        session = made.driver.open("agents")
        for at, turn in enumerate(agent.turns):
            said += f"{asking(turn.tool)} " if turn.tool else _text(rng, 1)
            variable = f"v{at}"
            await made.driver.submit(session, Submit(calls=(_call(said, variable, turn),)))
            answer = await made.driver.readers.get(session, variable)
            if not at:
                step = session.primitives[session.graph.producer[variable]].step
                assert step is not None and step.usage is not None
                first = step.usage.filled or made.now
            if turn.tool:
                await asyncio.sleep(turn.pause_s)
            said += answer.text + _text(rng, max(0, turn.returned - 1))
        made.driver.close(session)
        return first


def _call(said: str, variable: str, turn: Turn) -> Call:
    sampling = Sampling(max_tokens=turn.output, temperature=0.0)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=variable, sampling=sampling)
    prompt = (
        Message(role="user", content=(Segment(text=said),)),
        Message(role="assistant", content=(Segment(output="o"),)),
    )
    tool = Tool(function=Function(name=turn.tool or "none", parameters={"type": "object"}))
    return Call(name="turn", prompt=prompt, placeholders=(out,), tools=(tool,))


def _text(rng: random.Random, count: int) -> str:
    return "".join(f"w{rng.randrange(WORDS)} " for _ in range(count))


@asynccontextmanager
async def _alone(
    engine_config: SimulatedConfig, loop: VirtualLoop, policy: Policy, load: Arrivals
) -> AsyncIterator[_Alone]:
    engine = SimulatedEngine(engine_config, loop.time)
    description = await engine.start()
    assert description.kv_costs is not None
    bench = _Alone(engine, description.kv_costs, loop, policy, load)
    hearing = asyncio.create_task(bench.hear())
    try:
        yield bench
    finally:
        hearing.cancel()
        await engine.close()


@dataclass(slots=True)
class _Live:
    """An op in flight: its output, when its first token came, and its end."""

    ended: asyncio.Future[None]
    ranked: bool
    tokens: list[int] = field(default_factory=list)
    first: float | None = None


class _Alone:
    """Requests that use the engine's verbs, in the order of a paper's policy."""

    def __init__(
        self,
        engine: SimulatedEngine,
        costs: api.KvCosts,
        loop: VirtualLoop,
        policy: Policy,
        load: Arrivals,
    ) -> None:
        self.engine = engine
        self._costs = costs
        self._loop = loop
        self._policy = policy
        self._load = load
        self._live: dict[str, _Live] = {}
        self._begun = 0

    async def hear(self) -> None:
        """Pass the engine's events on."""
        async for events in self.engine.events():
            for event in events:
                live = self._live.get(event.op)
                if live is None:
                    continue
                if isinstance(event, api.Part):
                    if live.first is None:
                        live.first = event.time
                        self._keep_running(event.op)
                    live.tokens.extend(event.tokens)
                elif isinstance(event, api.Finished):
                    live.ended.set_result(None)
                elif isinstance(event, api.Failed):
                    live.ended.set_exception(RuntimeError(event.message))

    async def run(self, number: int, agent: Agent) -> float:
        """Run one request to its end."""
        rng = random.Random(f"{self._load.seed}/{number}")
        arrived, first = self._loop.time(), 0.0
        said = [rng.randrange(WORDS) for _ in range(agent.prompt)]
        parent, parent_tokens, salt, stayed = None, 0, f"{number}", False
        for at, turn in enumerate(agent.turns):
            context = f"{number}/{at}"
            seen, strategy = self._foresee(rng, agent, at, arrived, len(said))
            hints = (
                self._running_hints(context)
                if stayed
                else self._hints(context, self._policy.key(seen, self._costs, strategy))
            )
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
            live = await self._ran(op, ranked=not stayed)
            first = first or live.first or 0.0
            if parent is not None:
                self.engine.free(parent)
            said += live.tokens
            if not turn.tool:
                self.engine.free(context)
                break
            # The last token of an output is not computed yet, so it is a part of what follows.
            parent, parent_tokens = context, len(said) - 1
            stayed = strategy is Strategy.PRESERVE
            if strategy is Strategy.DISCARD:
                self.engine.free(context)
                parent, parent_tokens, salt = None, 0, f"{number}/{at}"
            elif strategy is Strategy.SWAP:
                self.engine.retain(context, api.Retention.SWAP)
            await asyncio.sleep(turn.pause_s)
            said += [rng.randrange(WORDS) for _ in range(turn.returned)]
        return first

    async def _ran(self, op: api.Op, ranked: bool) -> _Live:
        live = self._live[op.id] = _Live(self._loop.create_future(), ranked)
        self.engine.submit(op)
        promote = None
        if ranked and self._policy.patience_s is not None:
            promote = self._loop.call_later(self._policy.patience_s, self._promote, op, live)
        await live.ended
        if promote is not None:
            promote.cancel()
        return self._live.pop(op.id)

    def _keep_running(self, op: str) -> None:
        """Put a request that has begun to write before all that wait."""
        if self._live[op].ranked:
            self.engine.update(op, self._running_hints(op))

    def _running_hints(self, context: str) -> api.Hints:
        """Those of a running request: the order of beginning.

        Only waiting requests are ranked in both papers' systems. A preserved one that goes on is
        not among them.
        """
        self._begun += 1
        return api.Hints(application=context, priority=self._begun - 2 * 10**12)

    def _promote(self, op: api.Op, live: _Live) -> None:
        """Put a request that has waited too long before all others."""
        if live.first is None:
            first = api.Hints(application=op.id, priority=op.hints.priority - 10**12)
            self.engine.update(op.id, first)

    def _hints(self, context: str, key: float) -> api.Hints:
        return api.Hints(application=context, priority=round(key * 1000))

    def _foresee(
        self, rng: random.Random, agent: Agent, at: int, arrived: float, context: int
    ) -> tuple[Seen, Strategy]:
        """What is predicted of turn `at`, and what follows from it for its pause."""
        share, turn, rest = self._load.error, agent.turns[at], agent.turns[at:]
        output = max(1, round(turn.output * off(rng, share)))
        pause_s = max(1e-9, turn.pause_s * off(rng, share))
        seen = Seen(
            arrived=arrived,
            came=self._loop.time(),
            context=context,
            output=output,
            pause_s=pause_s if turn.tool else 0.0,
            returned=turn.returned,
            left_output=output + sum(one.output for one in rest[1:]),
            left_pause_s=pause_s + sum(one.pause_s for one in rest[1:]),
        )
        running = self.engine.book.scheduler.running
        beside = Load(len(running), sum(one.computed for one in running))
        return seen, self._policy.choice(context + output, seen.pause_s, self._costs, beside)
