"""Applications for the simulator: graphs of calls with prompts of given lengths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from tests.simulator.world import World, asking
from weftline.contract.protocol import (
    Call,
    Criterion,
    InOut,
    Placeholder,
    Sampling,
    Segment,
    SubmitBody,
)

WORDS = tuple(f"w{number} " for number in range(2048))  # the simulated engine's vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call with `own` tokens of text and `output` tokens of answer.

    It `reads` the outputs of other steps, given by their numbers. With `late_text` these come
    before its own text, which then cannot be prefilled early. All steps of the same `role` begin
    with the same `shared` tokens.
    """

    own: int
    output: int
    reads: tuple[int, ...] = ()
    late_text: bool = False
    role: str = ""
    shared: int = 0


Program = Sequence[Step]


def chain(steps: int, own: int, output: int, late_text: bool = True) -> Program:
    """A chain summary: each step reads the one before it."""
    first = [Step(own=own, output=output)]
    return first + [
        Step(own=own, output=output, reads=(i - 1,), late_text=late_text) for i in range(1, steps)
    ]


def map_reduce(chunks: int, own: int, output: int, joined: int = 32) -> Program:
    """All chunks in parallel, and one call that reads their outputs."""
    each = [Step(own=own, output=output) for _ in range(chunks)]
    return [*each, Step(own=joined, output=output, reads=tuple(range(chunks)))]


def text(rng: random.Random, tokens: int, words: Sequence[str] = WORDS) -> str:
    """Random words, each followed by a space."""
    return "".join(rng.choices(words, k=tokens))


@cache
def _shared(role: str, tokens: int) -> str:
    return text(random.Random(role), tokens)


@dataclass(frozen=True, slots=True)
class Ran:
    """The seconds of an application, and the engines of its calls."""

    seconds: float
    engines: Sequence[str] = ()


async def perform(
    made: World, program: Program, seed: object, criteria: Criterion | None = None
) -> Ran:
    """Run one application as compile_chain does: all calls in one request."""
    began = made.now
    session = made.driver.open("simulated", stays=False)
    calls, wanted = application(program, seed, criteria)
    await made.driver.submit(session, SubmitBody(calls=calls))
    await asyncio.gather(*(made.driver.readers.get(session, name) for name in wanted))
    ran = [run.step for run in session.primitives.values()]
    made.driver.close(session)
    return Ran(made.now - began, [step.engine or "" for step in ran if step is not None])


def application(
    program: Program, seed: object, criteria: Criterion | None = None, words: Sequence[str] = WORDS
) -> tuple[tuple[Call, ...], list[str]]:
    """The calls of a program, of which the last ones have the criteria, and what these write."""
    rng = random.Random(f"{seed}")
    read = {number for step in program for number in step.reads}
    calls = tuple(
        replace(_call(number, step, rng, words), criteria=None if number in read else criteria)
        for number, step in enumerate(program)
    )
    return calls, [f"v{number}" for number in range(len(program)) if number not in read]


async def by_client(made: World, program: Program, seed: object, round_trip_s: float) -> float:
    """Run one application like a client that makes every call itself. Return its seconds.

    Each call starts when the outputs that it reads are there, and has them in its prompt.
    """
    began = made.now
    rng = random.Random(f"{seed}")
    own = [text(rng, step.own) for step in program]
    answers: list[asyncio.Future[str]] = [made.loop.create_future() for _ in program]

    async def call(number: int, step: Step) -> None:
        """Run one step once the answers that it reads are there."""
        given = [await answers[i] for i in step.reads]
        role = _shared(step.role, step.shared) if step.shared else ""
        body = [*given, own[number]] if step.late_text else [own[number], *given]
        one = asking("".join([role, *body]), "v", step.output, ignore_eos=True)
        await asyncio.sleep(round_trip_s / 2)
        session = made.driver.open("simulated", stays=False)
        answer = await made.ask(session, one)
        made.driver.close(session)
        await asyncio.sleep(round_trip_s / 2)
        answers[number].set_result(answer)

    await asyncio.gather(*(call(number, step) for number, step in enumerate(program)))
    return made.now - began


def _call(number: int, step: Step, rng: random.Random, words: Sequence[str]) -> Call:
    sampling = Sampling(max_tokens=step.output, temperature=0.0, ignore_eos=True)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=f"v{number}", sampling=sampling)
    given = tuple(
        Placeholder(name=f"i{i}", in_out=InOut.IN, semantic_var_id=f"v{i}") for i in step.reads
    )
    inputs = [Segment(input=one.name) for one in given]
    own = [Segment(text=text(rng, step.own, words))] if step.own else []
    role = [Segment(text=_shared(step.role, step.shared))] if step.shared else []
    body = [*inputs, *own] if step.late_text else [*own, *inputs]
    prompt = (*role, *body, Segment(output="o"))
    return Call(name=f"call{number}", prompt=prompt, placeholders=(*given, out))
