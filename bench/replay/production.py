"""Replays sessions on a simulated engine: under the server, and under other systems' policies.

What was computed is compared with Belady's optimum, and the sessions a minute with those of an
engine that holds all contexts and computes as many tokens as Belady's optimum does.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from tests.simulator.world import World, asking, usage_of, world
from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

from .belady import Access, Tree, computed
from .direct import Direct, direct
from .gates import Thunder
from .retention import Continuum, FixedTtl, TimeToLive
from .trace import Recorded, Turn
from .words import Conversation

OURS, LRU = "weftline", "LRU"
GATED, TTL, CONTINUUM = "ThunderAgent's gate", "TTL", "Continuum"
# What of the server is off, by the name of a system that runs on the server.
SERVER: dict[str, frozenset[str]] = {
    OURS: frozenset(),
    "without admission": frozenset({"admission"}),
    LRU: frozenset({"admission", "retention"}),
    GATED: frozenset({"admission", "retention"}),
}
# Systems that use the engine's verbs themselves, by their time to live.
PINNED: dict[str, Callable[[], TimeToLive]] = {TTL: FixedTtl, CONTINUUM: Continuum}
SYSTEMS = (*SERVER, *PINNED)
# Before the order of arrival: requests whose context is pinned.
FIRST = 1 << 40


@dataclass(slots=True)
class Outcome:
    """The accesses with their starts in the engine, the prompt tokens that it computed, and the
    seconds of each session."""

    pool: int
    texts: list[tuple[float, list[int], int]] = field(default_factory=list)
    lasted: list[float] = field(default_factory=list)
    computed: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    between: Sequence[float] = ()  # seconds between two tokens of an answer

    @property
    def rate(self) -> float:
        """Sessions a minute."""
        return 60 * len(self.lasted) / self.seconds

    def optimum(self) -> tuple[int, int]:
        """The prompt tokens that are computed in this order without an eviction, and by Belady."""
        tree = Tree()
        in_order = sorted(self.texts, key=lambda one: one[0])
        accesses = [Access(tree.path(text), prompt) for _, text, prompt in in_order]
        return computed(accesses, math.inf), computed(accesses, self.pool)

    def row(self, best: int) -> dict[str, float]:
        """The figures: sessions a minute, seconds of sessions, the share of prompts that was
        cached, and the tokens that were computed over the optimum's."""
        prompts = sum(prompt for _, _, prompt in self.texts)
        return {
            "sessions_per_minute": round(self.rate, 2),
            "slowest_s": round(max(self.lasted), 1),
            "median_s": round(statistics.median(self.lasted), 1),
            "cached_share": round(1 - self.computed / prompts, 4),
            "computed_to_belady": round(self.computed / best, 3),
        }


class Client(Protocol):
    """One session as a system's client."""

    async def ask(self, prompt: list[int], turn: Turn) -> tuple[list[int], float]:
        """The words of the answer, and when the engine began with the prompt."""
        ...

    def close(self) -> None:
        """The session has ended."""
        ...


class ServerClient:
    """Sends calls of a session to the server, through the gate if there is one."""

    def __init__(self, made: World, name: str, gate: Thunder | None) -> None:
        self._made, self._name, self._gate = made, name, gate
        self._session = made.driver.open("replay")
        self._turns = 0

    async def ask(self, prompt: list[int], turn: Turn) -> tuple[list[int], float]:
        """`Client.ask`"""
        if self._gate is not None:
            await self._gate.request(self._name, len(prompt) + turn.output)
        variable = f"turn{self._turns}"
        self._turns += 1
        text = "".join(f"w{word} " for word in prompt)
        call = asking(text, variable, turn.output, ignore_eos=True)
        answer = await self._made.ask(self._session, call)
        if self._gate is not None:
            self._gate.responded(self._name)
        started = usage_of(self._session, variable).started
        return [int(word[1:]) for word in answer.split()], started

    def close(self) -> None:
        """`Client.close`"""
        self._made.driver.close(self._session)
        if self._gate is not None:
            self._gate.ended(self._name)


class PinningClient:
    """Pins the session's context between two requests. Programs run in the order of arrival, those
    with a pinned context first, as in Continuum's section 5."""

    def __init__(self, made: Direct, name: str, ttl: TimeToLive, number: int) -> None:
        self._made, self._name, self._ttl, self._number = made, name, ttl, number
        self._turns = 0
        self._context: str | None = None
        self._ended = 0.0
        self._unpin: asyncio.TimerHandle | None = None

    async def ask(self, prompt: list[int], turn: Turn) -> tuple[list[int], float]:
        """`Client.ask`"""
        made, now = self._made, self._made.loop.time()
        before, context = self._context, f"{self._name}/{self._turns}"
        pinned = self._unpin is not None and self._unpin.when() > now
        if self._unpin is not None:
            self._unpin.cancel()
        if self._turns:
            self._ttl.resumed(now - self._ended)
        self._turns += 1
        hints = api.Hints(application=self._name, priority=self._number - pinned * FIRST)
        sampling = api.SamplingParams(max_tokens=turn.output, ignore_eos=True)
        op = api.Op(
            id=context, kind=api.Kind.GENERATE, context=context, tokens=tuple(prompt),
            sampling=sampling, hints=hints,
        )  # fmt: skip
        flight = made.send(op)
        usage = await flight.ended
        if not pinned and before is not None:
            self._ttl.waited(usage.started - now)
        if before is not None:
            made.engine.free(before)
        self._context, self._ended = context, made.loop.time()
        reload_s = _reload(len(prompt) + turn.output, made.engine.config.cost)
        self._unpin = made.loop.call_later(self._ttl.seconds(reload_s), self._release, context)
        return list(flight.tokens), usage.started

    def close(self) -> None:
        """`Client.close`"""
        self._ttl.ended(self._turns)
        if self._unpin is not None:
            self._unpin.cancel()
        if self._context is not None:
            self._made.engine.free(self._context)

    def _release(self, context: str) -> None:
        self._made.engine.retain(context, api.Retention.EVICTABLE)


def replay(
    sessions: Sequence[Recorded],
    system: str,
    *,
    at_once: int,
    pool: int,
    config: SimulatedConfig,
    slots: int | None = None,
) -> Outcome:
    """Run all sessions, `at_once` of them together, on an engine with `pool` tokens. With `slots`
    only so many of them have left a semaphore in the client."""
    config = replace(
        config, kv_tokens=pool, predicts="retention" not in SERVER.get(system, {"retention"})
    )

    async def main(loop: VirtualLoop) -> Outcome:
        if system in PINNED:
            async with direct(config, loop) as alone:
                ttl = PINNED[system]()
                return await _all(loop, alone.engine, sessions, (at_once, slots or at_once),
                    lambda name, number: PinningClient(alone, name, ttl, number),
                )  # fmt: skip
        async with (
            world(loop, config, without=SERVER[system]) as made,
            _gate(loop, system, pool) as gate,
        ):
            return await _all(
                loop,
                made.engines[0],
                sessions,
                (at_once, slots or at_once),
                lambda name, number: ServerClient(made, name, gate),
            )

    return run(main)


def bound(
    sessions: Sequence[Recorded], *, at_once: int, config: SimulatedConfig, more: float
) -> float:
    """The sessions a minute of an engine that holds all contexts, where a prompt token costs `more`
    times as much, because Belady's optimum computes so many more tokens. Of two orders of the
    requests, that of the engine and that of programs, the better one counts."""
    cost = replace(
        config.cost, fill_s=more * config.cost.fill_s, attend_s=more * config.cost.attend_s
    )
    pool = sum(turn.input + turn.output for one in sessions for turn in one.turns)
    config = replace(config, cost=cost)
    orders = (
        replay(sessions, name, at_once=at_once, pool=pool, config=config) for name in (LRU, TTL)
    )
    return max(one.rate for one in orders)


@asynccontextmanager
async def _gate(loop: VirtualLoop, system: str, pool: int) -> AsyncIterator[Thunder | None]:
    if system != GATED:
        yield None
        return
    gate = Thunder(pool, loop.time)
    polling = asyncio.create_task(gate.poll_forever())
    yield gate
    polling.cancel()
    with suppress(asyncio.CancelledError):
        await polling


async def _all(
    loop: VirtualLoop,
    engine: SimulatedEngine,
    sessions: Sequence[Recorded],
    clients: tuple[int, int],
    client: Callable[[str, int], Client],
) -> Outcome:
    """Run the sessions with so many clients, of which as many as the second number run at once."""
    outcome = Outcome(engine.config.kv_tokens)
    left = list(enumerate(sessions))
    semaphore = asyncio.Semaphore(clients[1])

    async def one_after_the_other() -> None:
        while left:
            number, recorded = left.pop(0)
            began = loop.time()
            async with semaphore:
                await _one(client(recorded.id, number), recorded, outcome)
            outcome.lasted.append(loop.time() - began)

    await asyncio.gather(*(one_after_the_other() for _ in range(clients[0])))
    outcome.computed, outcome.busy_s = engine.computed, engine.busy_s
    outcome.between = engine.between
    outcome.seconds = loop.time()
    return outcome


async def _one(client: Client, recorded: Recorded, outcome: Outcome) -> None:
    words = Conversation(recorded.id)
    for turn in recorded.turns:
        await asyncio.sleep(turn.think_s)
        prompt = words.prompt(turn)
        answer, started = await client.ask(prompt, turn)
        words.answered(turn, prompt, answer)
        # The KV of the answer's last token is never computed.
        outcome.texts.append((started, [*prompt, *answer[:-1]], len(prompt)))
    client.close()


def _reload(tokens: int, cost: StepCost) -> float:
    """The seconds to compute a context again."""
    return cost.fill_s * tokens + cost.attend_s * tokens * (tokens + 1) / 2
