"""Each switch of `--without` has a measurable effect on the same load, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tests.null.asgi import Serve
from tests.simulator.world import World, world
from weftline.contract.protocol import Call, InOut, Placeholder, Sampling, Segment, SubmitBody
from weftline_engine.pretend.null import NullConfig
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.config import OPTIMISATIONS, ServerConfig
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore

T = TypeVar("T")

# A step takes 10 ms and a prompt token 1 ms, so work done twice or too late is visible.
CONFIG = SimulatedConfig(cost=StepCost(step_s=0.010, fill_s=0.001, sequence_s=0.0))


def step(prompt: tuple[Segment, ...], writes: str, *reads: str, tokens: int = 10) -> Call:
    """Build a call with `tokens` output tokens. An input has the name of its variable."""
    sampling = Sampling(max_tokens=tokens, temperature=0.0)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=writes, sampling=sampling)
    inputs = (Placeholder(name=v, in_out=InOut.IN, semantic_var_id=v) for v in reads)
    return Call(name=writes, prompt=(*prompt, Segment(output="o")), placeholders=(out, *inputs))


def words(first: int, count: int) -> Segment:
    return Segment(text="".join(f"w{first + i} " for i in range(count)))


async def a_chain(made: World) -> float:
    """Return the seconds of a call of 50 tokens and a reader of it behind 400 tokens of
    instructions.
    """
    session = made.driver.open("t")
    first = step((words(0, 20),), "draft", tokens=50)
    second = step((words(500, 400), Segment(input="draft")), "final", "draft")
    await made.driver.submit(session, SubmitBody(calls=(first, second)))
    await made.driver.readers.get(session, "final")
    return made.now


async def three_topics(made: World) -> float:
    """Return the prompt tokens that three engines compute for four rounds of calls on three long
    prompts. The order of the prompts differs in each round.
    """
    for turn in range(4):
        for place in range(3):
            topic = (place + turn) % 3
            session = made.driver.open("t")
            prompt = (words(600 * topic, 400), words(turn, 3))
            await made.driver.submit(session, SubmitBody(calls=(step(prompt, "v"),)))
            await asyncio.sleep(0.0)
        await asyncio.sleep(5.0)
    return sum(engine.computed for engine in made.engines)


def measured(load: Callable[[World], Awaitable[T]], engines: int, *without: str) -> T:
    async def main(loop: VirtualLoop) -> T:
        async with world(loop, *[CONFIG] * engines, without=frozenset(without)) as made:
            return await load(made)

    return run(main)


def test_a_prompt_that_is_filled_early_does_not_wait_for_its_input() -> None:
    """A fill of 400 ms runs on one engine while the first call decodes on the other, or
    after it.
    """
    early, late = measured(a_chain, 2), measured(a_chain, 2, "prefill_early")
    assert late - early > 0.35


def test_a_wrong_early_filled_token_is_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of the whole prompt count: a different continuation gives no wrong text."""
    wrong: list[tuple[int, ...]] = []

    async def final(made: World) -> str:
        await a_chain(made)
        [session] = made.driver.registry
        return session.variable("final").text

    stable = Prompter.stable_prefix

    def lies(self: Prompter, prompt: PromptBefore, hole: str, session: str) -> tuple[int, ...]:
        ids = stable(self, prompt, hole, session)
        if ids:
            wrong.append((*ids[:-1], ids[-1] + 1))
        return wrong[-1] if ids else ids

    text = measured(final, 2)
    monkeypatch.setattr(Prompter, "stable_prefix", lies)
    assert measured(final, 2) == text
    assert wrong


def test_calls_go_where_their_prefix_is() -> None:
    """Each long prompt is computed once, or, without the switch, on every engine that a call
    reaches.
    """
    assert measured(three_topics, 3) < 3 * 400 + 12 * 20
    assert measured(three_topics, 3, "affinity") > 1.5 * measured(three_topics, 3)


ONE_OFF = [ServerConfig(without=frozenset({name})) for name in sorted(OPTIMISATIONS)]


@pytest.mark.parametrize("config", ONE_OFF, ids=sorted(OPTIMISATIONS))
async def test_values_are_the_same_without(serve: Serve, config: ServerConfig) -> None:
    """A map-reduce runs on the whole server with each switch off."""
    server = await serve(NullConfig(), config)
    maps = [
        {
            "name": f"map{i}",
            "prompt": f"part {i} {{{{output:o}}}}",
            "placeholders": [{"name": "o", "in_out": "out", "semantic_var_id": f"m{i}"}],
        }
        for i in range(3)
    ]
    reduce = {
        "name": "reduce",
        "prompt": "all: {{input:m0}}{{input:m1}}{{input:m2}}{{output:o}}",
        "placeholders": [
            {"name": "o", "in_out": "out", "semantic_var_id": "all"},
            *({"name": f"m{i}", "in_out": "in", "semantic_var_id": f"m{i}"} for i in range(3)),
        ],
    }
    body = {"calls": [*maps, reduce], "get": ["all"], "close": True}
    answer = await server.http.post("/v1/submit", json=body)
    assert answer.json()["values"]["all"] == "all: part 0 part 1 part 2 "
