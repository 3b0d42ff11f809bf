"""The promises of the policy to whoever waits, kept on simulated engines beside other traffic."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.null.traffic import Traffic, beside
from tests.simulator.programs import Step, map_reduce, perform
from tests.simulator.world import TWO_CORES, world
from weftline.contract.protocol import (
    Call,
    Criterion,
    InOut,
    Placeholder,
    Sampling,
    Segment,
    SubmitBody,
)
from weftline_engine import api
from weftline_engine.api import Hints
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.prompt.prompter import Prompter
from weftline_server.runtime.prompt_runner import meanings
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued
from weftline_server.schedule.turns import MOST_OVERTAKEN_S

# Eight places, and a chat of 2.4 s of work for each 0.32 s of eight places: more than it can bear.
BUSY = SimulatedConfig(
    cost=StepCost(step_s=0.02, fill_s=0.001, sequence_s=0.004, token_s=2e-6), max_running=8
)
# A decode step of one sequence takes 58 ms, and of nine 122.
WIDE = SimulatedConfig(cost=StepCost(step_s=0.05, fill_s=0.0006, sequence_s=0.008))


def test_a_throughput_call_waits_as_long_whatever_the_traffic() -> None:
    """It waits 60 s, behind the chats of a minute, however long more of them keep coming."""
    waits = []
    for seconds in (80.0, 100.0):
        job = {5.0: [Step(own=400, output=40)]}
        traffic = Traffic(every_s=0.32, chats_s=seconds, jobs=job, criterion=Criterion.THROUGHPUT)
        waits += beside(BUSY, replace(traffic, jobs_alone=True)).jobs_s
    assert waits[0] == waits[1] < MOST_OVERTAKEN_S


def test_a_large_call_finds_room_beside_small_ones() -> None:
    """A prompt as long as the whole cache starts, although small calls could take each free block
    before it.
    """
    small = SimulatedConfig(cost=BUSY.cost, kv_tokens=4096)
    jobs = {5.0: [Step(own=3800, output=40)]}
    traffic = Traffic(every_s=0.32, chats_s=120.0, jobs=jobs, jobs_alone=True)
    [lasted] = beside(small, traffic).jobs_s
    assert lasted < MOST_OVERTAKEN_S


def test_a_map_reduce_and_chats_share_the_engine() -> None:
    """Eight maps that somebody waits for run beside a chat a second. The job takes little longer
    than in the order of requests, and the chats are faster.
    """
    job = {10.0: map_reduce(8, own=700, output=60)}
    traffic = Traffic(every_s=1.0, chats_s=60.0, jobs=job)
    ours = beside(WIDE, traffic)
    plain = beside(replace(WIDE, bounds=False), traffic, policy="request")
    assert ours.jobs_s[0] < 1.1 * plain.jobs_s[0]
    assert ours.chat_ms < plain.chat_ms


def test_throughput_calls_gather_and_chats_keep_away() -> None:
    """Eight throughput calls come to four engines with chats. One engine takes all of them, and no
    chat that comes later.
    """
    jobs = {10.0 + n / 100: [Step(own=600, output=60)] for n in range(8)}
    traffic = Traffic(every_s=0.5, chats_s=20.0, jobs=jobs, criterion=Criterion.THROUGHPUT)
    found = beside(TWO_CORES, traffic, engines=4).engines
    [gathered] = set(found["job"])
    assert Counter(found["chat"])[gathered] < 2


def test_maps_leave_an_engine_to_the_chats() -> None:
    """Sixteen maps under a reduce that somebody waits for go to three of four engines."""
    job = {10.0: map_reduce(16, own=400, output=40)}
    found = beside(TWO_CORES, Traffic(every_s=0.5, chats_s=20.0, jobs=job), engines=4).engines
    assert len(set(found["job"][:16])) == 3


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 2500), st.integers(1, 4))
def test_an_urgent_call_waits_for_one_short_step(after_ms: int, tokens: int) -> None:
    """The beginning of a long prompt is filled while its inputs do not exist. A call of a few
    tokens comes at any time. It waits for the step that runs, which has at most 32 tokens of the
    open prompt, and the next step computes its first token.
    """
    config = SimulatedConfig(cost=TWO_CORES.cost)
    early = SchedulerConfig(blocks=1).early_tokens

    async def main(loop: VirtualLoop) -> float:
        engine = SimulatedEngine(config, loop.time)
        await engine.start()
        engine.submit(_op("early", 2000, is_open=True))
        await asyncio.sleep(after_ms / 1000)
        engine.submit(_op("urgent", tokens))
        async for events in engine.events():
            if any(isinstance(one, api.Finished) for one in events):
                break
        await engine.close()
        return loop.time() - after_ms / 1000

    runs = config.cost.seconds(early, 0, 2000, early * 2000)
    own = config.cost.seconds(early + tokens, 0, 2000, early * 2000 + tokens**2)
    assert run(main) <= runs + own < 0.25


def _op(name: str, length: int, *, is_open: bool = False) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tuple(range(length)),
        sampling=api.SamplingParams(max_tokens=1),
        open=is_open,
    )


def test_short_prefixes_bring_calls_together() -> None:
    """The first call runs on the second engine, as the first one is busy. A later call with the
    same twenty tokens goes there too, while both engines are idle.
    """

    async def main(loop: VirtualLoop) -> list[str]:
        async with world(loop, BUSY, BUSY) as made:
            call = Step(own=8, output=4, role="short", shared=20)
            other = asyncio.create_task(perform(made, [Step(own=300, output=99)], "other"))
            await asyncio.sleep(0.1)
            first = await perform(made, [call], 1)
            await other
            second = await perform(made, [call], 2)
            return [*first.engines, *second.engines]

    assert run(main) == ["e1", "e1"]


def test_readers_of_a_variable_meet_before_it_has_a_value() -> None:
    """Two calls will read the same variable behind the same text. Both are filled early, and know
    by the variable that they share more than the few tokens of that text: the second goes to the
    engine of the first, although that is busier. In another session the variable is another one.
    """
    variable = Segment(input="doc")
    prompt = (Segment(text="w1 " * 30), variable, Segment(text=" w2"), Segment(output="o"))

    async def main(loop: VirtualLoop) -> list[list[str]]:
        async with world(loop, BUSY) as made:
            found = []
            for _ in range(2):
                session = made.driver.open("t")
                holder = Placeholder(name="doc", in_out=InOut.IN, semantic_var_id="doc")
                calls = [_writes("doc", (Segment(text="w3 " * 30), Segment(output="o")))]
                calls += [_writes(f"v{n}", prompt, holder) for n in range(2)]
                await made.driver.submit(session, SubmitBody(calls=tuple(calls)))
                readers = list(session.graph.primitives.values())[1:]
                found += [[hash for hash, _ in meanings(session, one)] for one in readers]
            return found

    one, same, other, _ = run(main)
    assert one == same and len(one) == 2 and not set(one) & set(other)
    early: dict[str, Any] = {"hints": Hints(), "model": "m", "kind": "generate", "open": True}
    shares = (("doc", 160), ("docs end", 161))
    queue = [Queued(id=id, queued=0.0, tokens=40, meanings=shares, **early) for id in ("a", "b")]
    engines = [EngineLoad(name="e0", model="m"), EngineLoad(name="e1", model="m")]
    assert len({p.engine for p in place(queue, engines, "app", 0.0)}) == 1


def test_early_fills_of_one_variable_meet_on_an_engine() -> None:
    """A call is writing a text on the first of three engines, and two calls wait for it. Their own
    beginnings are filled on the second engine, although the third is idle: placement knows by the
    variable that they will share much.
    """

    async def main(loop: VirtualLoop) -> tuple[str, list[str]]:
        async with world(loop, BUSY, BUSY, BUSY) as made:
            session = made.driver.open("t")
            holder = Placeholder(name="doc", in_out=InOut.IN, semantic_var_id="doc")
            text = (Segment(text="w1 " * 30), Segment(input="doc"), Segment(output="o"))
            calls = [_writes("doc", (Segment(text="w3 " * 30), Segment(output="o")), output=100)]
            calls += [_writes(f"v{n}", text, holder, output=100) for n in range(2)]
            await made.driver.submit(session, SubmitBody(calls=tuple(calls)))
            await asyncio.sleep(0.5)  # the text is not complete for 2 s
            members = made.driver.dispatcher.members
            filled = [m.name for m in members for work in m.ops.works.values() if work.op.open]
            return str(session.variables["doc"].state), filled

    state, filled = run(main)
    assert filled == ["e1", "e1"], state


def _writes(name: str, prompt: tuple[Segment, ...], *holders: Placeholder, output: int = 4) -> Call:
    sampling = Sampling(max_tokens=output, ignore_eos=True)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=name, sampling=sampling)
    return Call(name=name, prompt=prompt, placeholders=(*holders, out))


def test_the_text_of_a_chat_template_counts_for_an_early_fill() -> None:
    """The template writes a system message of its own, which every prompt begins with."""
    system = "<|system|>You are a helpful assistant.<|user|>"
    template = system + "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert Prompter(api.Description(model="m", chat_template=template)).begins == len(system)
    assert Prompter(api.Description(model="m")).begins == 0
