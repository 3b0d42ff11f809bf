"""Simulates many agents on one KV pool that holds a third of their contexts.

An application has eight turns with a pause after each. Each turn repeats the conversation so far
and adds a tool's result. An agent starts its next application as soon as one has ended, so the load
stays the same.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulator.world import World, asking, world
from weftline_engine.pretend.simulation import SimulatedConfig
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.http.openai.conversations import Conversations
from weftline_server.http.openai.requests import ChatMessage, ChatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """`agents` clients run `applications`; lengths are in tokens, `pause_s` is a tool's mean
    time."""

    agents: int = 32
    applications: int = 96
    turns: int = 8
    shared: int = 300  # of the system prompt with its tools, which all agents share
    task: int = 300
    result: int = 150
    answer: int = 40
    pause_s: float = 0.5
    at_once: int | None = None  # the client's own semaphore
    named: bool = True  # else no client names its session, nor tells its end
    factors: tuple[int, ...] = (1,)  # of the task, for one application after the other
    seed: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of an agent's context in its last turn, without the system prompt."""
        return self.task + self.turns * (self.answer + self.result)

    @property
    def pool(self) -> int:
        """The tokens of the pool: a third of what all agents need."""
        return self.agents * self.tokens // 3 + self.shared


@dataclass(slots=True)
class Result:
    """When applications ended, and the seconds of each since its agent wanted to start it.

    It also has the tokens that were computed, and those that were needed."""

    agents: Agents
    ended: list[float] = field(default_factory=list)
    largest_s: float = 0.0  # of the applications with the largest factor
    lasted: list[float] = field(default_factory=list)
    full_until: float = 0.0
    computed: int = 0
    needed: int = 0

    @property
    def rate(self) -> float:
        """Applications a second while every agent has one: from the time when each agent has ended
        its first until none is left to start."""
        begin = self.ended[self.agents.agents - 1]
        count = sum(begin < end <= self.full_until for end in self.ended)
        return count / (self.full_until - begin)

    @property
    def row(self) -> dict[str, float]:
        """The experiment's numbers."""
        return {
            "applications_per_minute": round(self.rate * 60, 1),
            "recomputed_share": round(1 - min(1.0, self.needed / max(1, self.computed)), 3),
            "mean_s": round(statistics.mean(self.lasted), 1),
            "slowest_s": round(max(self.lasted), 1),
        }


def simulate(agents: Agents, config: SimulatedConfig, without: frozenset[str]) -> Result:
    """Run all applications, from the first start to the last end."""
    [result] = in_turn([agents], config, without)
    return result


def in_turn(
    waves: Sequence[Agents], config: SimulatedConfig, without: frozenset[str], gap_s: float = 0.0
) -> list[Result]:
    """Run one wave of agents after the other on one server, which is idle for `gap_s` seconds
    between them."""

    async def main(loop: VirtualLoop) -> list[Result]:
        results: list[Result] = []
        async with world(loop, config, without=without) as made:
            known = Conversations(made.driver, lambda: made.now)
            for wave in waves:
                if results:
                    await asyncio.sleep(gap_s)
                results.append(await _all(made, wave, None if wave.named else known))
        return results

    return run(main)


async def _all(made: World, agents: Agents, unnamed: Conversations | None) -> Result:
    room = asyncio.Semaphore(agents.at_once or agents.agents)
    left = list(range(agents.applications))
    start, before = made.now, sum(engine.computed for engine in made.engines)
    result = Result(agents)

    async def client() -> None:
        while left:
            number, began = left.pop(0), made.now - start
            result.full_until = began
            async with room:
                await _application(made, agents, number, unnamed)
            result.ended.append(made.now - start)
            result.lasted.append(made.now - start - began)
            if _factor(agents, number) == max(agents.factors):
                result.largest_s = max(result.largest_s, result.lasted[-1])

    await asyncio.gather(*(client() for _ in range(agents.agents)))
    result.computed = sum(engine.computed for engine in made.engines) - before
    # Each token is needed once: an application's task, and the results that it reads, each with the
    # last token of the answer before it.
    each = (agents.turns - 1) * (agents.result + 1)
    tasks = sum(agents.task * _factor(agents, n) for n in range(agents.applications))
    result.needed = agents.shared + agents.applications * each + tasks
    return result


def _factor(agents: Agents, number: int) -> int:
    return agents.factors[number % len(agents.factors)]


async def _application(
    made: World, agents: Agents, number: int, unnamed: Conversations | None
) -> None:
    rng = random.Random(f"{agents.seed}/{number}")

    def words(count: int) -> str:
        return "".join(f"w{rng.randrange(2048)} " for _ in range(count))

    common = random.Random(agents.seed)
    said = "".join(f"w{common.randrange(2048)} " for _ in range(agents.shared))
    said += words(agents.task * _factor(agents, number))
    messages = [ChatMessage(role="user", content=said)]
    session = None if unnamed else made.driver.open("agents")
    for turn in range(agents.turns):
        found = session
        if unnamed is not None:
            found = unnamed.find("agents", {}, ChatRequest(messages=tuple(messages)))
        of_turn = found or made.driver.open("agents", stays=False)
        variable = f"turn{turn}"
        answer = await made.ask(of_turn, asking(said, variable, agents.answer))
        if found is None:
            made.driver.close(of_turn)
        result = words(agents.result)
        messages.append(ChatMessage(role="assistant", content=answer))
        messages.append(ChatMessage(role="user", content=result))
        said += answer + result
        if turn + 1 < agents.turns:
            await asyncio.sleep(rng.expovariate(1 / agents.pause_s))
    if session is not None:
        made.driver.close(session)
