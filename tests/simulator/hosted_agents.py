"""Simulates agents whose tools the server runs, on a KV pool that holds a third of their contexts.

An agent is one step of its session. Each of its turns but the last calls a tool. Half of the agents
call a tool of 50 ms, and half one of 6 s.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

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
from weftline.contract.steps import AgentStep
from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost, asking
from weftline_engine.pretend.virtual_time import VirtualLoop, run

TOOLS = {"clock": 0.05, "walk": 6.0}
# A step of GPT-J-6B on an A100, as LAMPS measured it, with prompts that are ten times as dear.
COST = StepCost(step_s=0.01692, fill_s=4.08e-4, sequence_s=4.08e-5, copy_s=1.8e-5)
WORDS = 2048
# Writes calls and results as the model's own words, and no description of the tools.
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% for one in message['tool_calls'] or"
    """ [] %}<tool_call>{"name":"{{ one['function']['name'] }}","arguments":{}}</tool_call> """
    "{% endfor %}{% endfor %}{% if tools %}{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedAgents:
    """`agents` at a time run `applications`; lengths are in tokens."""

    agents: int = 24
    applications: int = 72
    turns: int = 5
    task: int = 400
    result: int = 150
    answer: int = 40
    share: float = 1 / 3  # of the cache that all agents need
    host_tokens: int = 0
    stays: bool = True  # else a session ends with its agent
    seed: int = 0

    @property
    def pool(self) -> int:
        return int(
            self.share * self.agents * (self.task + self.turns * (self.answer + self.result))
        )

    def tool_of(self, number: int) -> str:
        return ("clock", "walk")[number % 2]


class Model(SimulatedEngine):
    """An engine whose chat template knows tools; `early` counts the open ops that it got."""

    early = 0

    async def start(self) -> api.Description:
        """`Engine.start`"""
        return replace(await super().start(), chat_template=TEMPLATE)

    def submit(self, op: api.Op) -> None:
        """`Engine.submit`"""
        self.early += op.open
        super().submit(op)


class ToolsInTime:
    """An engine of kind `tool` whose calls take their time in TOOLS. The result of a call ends with
    the word that makes the model call the tool again, except in an agent's last turn but one."""

    def __init__(self, agents: HostedAgents, clock: Callable[[], float]) -> None:
        self._agents = agents
        self._clock = clock
        self._done: Counter[str] = Counter()  # calls by application
        self._out: asyncio.Queue[list[api.Event]] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> api.Description:
        told = {"description": "", "parameters": {"type": "object"}, "streams": False}
        tools = tuple({**told, "name": name, "effects": "once"} for name in TOOLS)
        return api.Description(model="tools", kinds=("tool",), capabilities=(), tools=tools)

    def submit(self, op: api.Op) -> None:
        self._tasks[op.id] = asyncio.get_running_loop().create_task(self._run(op))

    async def _run(self, op: api.Op) -> None:
        tool, application = str(op.inputs["tool"]), op.hints.application
        rng = random.Random(f"{self._agents.seed}/{op.id.partition('/')[2]}")
        started = self._clock()
        await asyncio.sleep(TOOLS[tool])
        self._done[application] += 1
        text = words(rng, self._agents.result - 1)
        again = self._done[application] < self._agents.turns - 1
        text += asking(tool) if again else "w0"
        usage = api.Usage(
            prompt_tokens=0, cached_tokens=0, output_tokens=0, started=started, filled=started
        )
        value = {"content": text, "is_error": False, "rejected": False}
        end = api.Finished(
            op=op.id,
            attempt=op.attempt,
            sequence=1,
            time=self._clock(),
            reason=api.FinishReason.STOP,
            usage=usage,
            value=value,
        )
        self._out.put_nowait([end])

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while True:
            yield await self._out.get()

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None: ...
    def update(self, op: str, hints: api.Hints) -> None: ...
    def cancel(self, op: str) -> None:
        self._tasks.pop(op).cancel()

    def retain(self, context: str, retention: api.Retention) -> None: ...
    def free(self, context: str) -> None: ...
    async def close(self) -> None: ...


def words(rng: random.Random, count: int) -> str:
    return "".join(f"w{rng.randrange(WORDS)} " for _ in range(count))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The mean seconds of an agent by its tool, all agents' end, the share of the prompts' tokens
    that were computed again, what the server expects of each tool, and how many turns were filled
    before their tools had ended."""

    seconds: dict[str, float]
    ended: float
    again: float
    expects_s: dict[str, float]
    early: int

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.seconds.values())


def simulate(agents: HostedAgents, without: frozenset[str] = frozenset()) -> Outcome:
    """Run all agents to their ends."""

    async def main(loop: VirtualLoop) -> Outcome:
        config = SimulatedConfig(
            cost=COST,
            kv_tokens=agents.pool,
            step_tokens=384,
            beside_tokens=384,
            words=WORDS,
            host_tokens=agents.host_tokens,
            tools=tuple(TOOLS),
        )
        engines: list[Model] = []

        def model() -> api.Engine:
            engines.append(Model(config, loop.time))
            return engines[-1]

        def tools() -> api.Engine:
            return ToolsInTime(agents, loop.time)

        async with serving(loop, {"e": model, "tools": tools}, without=without) as made:
            return await _all(made, engines, agents)

    return run(main)


async def _all(made: World, engines: list[Model], agents: HostedAgents) -> Outcome:
    left = list(range(agents.applications))
    lasted: dict[str, list[float]] = {name: [] for name in TOOLS}

    async def client() -> None:
        while left:
            number, began = left.pop(0), made.now
            tool = agents.tool_of(number)
            rng = random.Random(f"{agents.seed}/{number}")
            session = made.driver.open("agents", stays=agents.stays)
            said = words(rng, agents.task - 1) + asking(tool)
            await made.driver.submit(session, SubmitBody(steps=(_agent(said, agents),)))
            await made.driver.readers.get(session, "a")
            made.driver.close(session)
            lasted[tool].append(made.now - began)

    await asyncio.gather(*(client() for _ in range(agents.agents)))
    memory = made.driver.dispatcher.memory
    salt = made.driver.registry.salts["agents"]
    needed = agents.applications * (agents.task + (agents.turns - 1) * (agents.result + 1))
    computed = sum(engine.computed for engine in engines)
    return Outcome(
        seconds={tool: statistics.fmean(some) for tool, some in lasted.items() if some},
        ended=made.now,
        again=1 - needed / computed,
        expects_s={name: memory.paused_contexts.expect(salt, (name,)) or 0.0 for name in TOOLS},
        early=sum(engine.early for engine in engines),
    )


def _agent(said: str, agents: HostedAgents) -> AgentStep:
    sampling = Sampling(max_tokens=agents.answer, temperature=0.0)
    out = Placeholder(name="o", in_out=InOut.OUT, sampling=sampling)
    prompt = (
        Message(role="user", content=(Segment(text=said),)),
        Message(role="assistant", content=(Segment(output="o"),)),
    )
    call: Any = Call(name="turn", prompt=prompt, placeholders=(out,))
    return AgentStep(name="helper", call=call, out="a", most=agents.turns)
