"""The simulator tested against itself: calibration finds a known profile and predicts with it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from bench.simulator.calibration import Case, calibrate, cases, foretell, replay, timed
from bench.simulator.programs import Step, by_client, chain, map_reduce, perform
from bench.simulator.sizes import compare, mix, prompt_tokens, simulate
from bench.simulator.world import world
from weftline_engine.simulated import SimulatedConfig, StepCost
from weftline_engine.virtual_time import VirtualLoop, run

HIDDEN = SimulatedConfig(cost=StepCost(step_s=0.03, fill_s=0.001, sequence_s=0.004))


def call(start: float, seconds: float, prompt: int, output: int, cached: int = 0) -> dict[str, Any]:
    """A call as the harness records it; queue and prefill take two thirds of its time."""
    sizes = {"prompt": prompt, "output": output, "cached": cached}
    phases = {"queue_s": seconds / 6, "fill_s": seconds / 2}
    return {"start": start, "seconds": seconds, **sizes, **phases}


def app(start: float, seconds: float, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"start": start, "seconds": seconds, "error": None, "calls": list(calls)}


def case(workload: str, point: str, *apps: dict[str, Any]) -> Case:
    """A point with the times of the hidden profile."""
    return measured_by(HIDDEN, Case(workload, point, apps, 1.0, 0.0, 0))


def measured_by(config: SimulatedConfig, made: Case) -> Case:
    """The same case with the times of an engine with this profile."""
    (found,) = replay([made], config)
    return replace(made, **asdict(found))


def chats(users: int) -> Case:
    """A case of `users` users with two turns each."""
    apps = [app(t, 1, call(0, 1, 80 + user, 8)) for t in (0.0, 1.0) for user in range(users)]
    return case("independent_chat", f"{users} at once", *apps)


CHATS = [chats(1), chats(4)]
STEPS = [call(0, 1, 100, 6), call(1, 1, 106, 6), call(2, 1, 106, 6)]


def test_a_call_takes_the_steps_of_the_profile() -> None:
    """80 prompt tokens take a step of 0.03 + 0.08 s; seven more tokens take 0.034 s each."""
    (found,) = replay(CHATS[:1], HIDDEN)
    assert found.prefill_s == pytest.approx(0.03 + 0.08)
    assert found.generate_s == pytest.approx(7 * 0.034)
    assert found.seconds == pytest.approx(0.03 + 0.08 + 7 * 0.034)


@pytest.mark.parametrize("point", ("summary first", "text first"))
def test_a_step_waits_for_the_outputs_it_reads(point: str) -> None:
    """A chain has three steps: 100 tokens, then 6 and 100 twice. A text that comes first is
    prefilled while its step waits, but on a busy engine this saves no time.
    """
    found = case("chain_summary", point, app(0, 1, *STEPS))
    each = 0.03 + 5 * 0.034
    assert found.seconds == pytest.approx(3 * each + 0.001 * (100 + 106 + 106))


def test_calibration_finds_a_profile_that_predicts_other_workloads() -> None:
    """It starts at half of the true profile; the error on other workloads is then below 15 %."""
    start = SimulatedConfig(cost=StepCost(step_s=0.015, fill_s=0.0005, sequence_s=0.002))
    found = calibrate(CHATS, start, rounds=3)
    others = [
        case("chain_summary", "text first", app(0, 1, *STEPS)),
        case("map_reduce", "output 6", app(0, 1, *STEPS[:2], call(3, 1, 20, 6))),
    ]
    assert all(one.error < -0.4 for one in foretell(others, start))
    assert [one.error for one in foretell(others, found)] == pytest.approx([0, 0], abs=0.15)


def test_long_prompts_cost_more_than_their_length() -> None:
    """A prompt of 80 tokens attends to 80 · 81 / 2 tokens. Prompts of two lengths separate the cost
    of attention from that of a token, and users of one system prompt are predicted."""
    attending = replace(HIDDEN, cost=replace(HIDDEN.cost, attend_s=20e-6))
    (alone,) = replay(CHATS[:1], attending)
    assert alone.seconds == pytest.approx(0.03 + 0.08 + 20e-6 * 3240 + 7 * 0.034)

    def measured(workload: str, point: str, *apps: dict[str, Any], shared: int = 0) -> Case:
        return measured_by(attending, Case(workload, point, apps, 1.0, 0.0, shared))

    chats = [
        measured(
            "independent_chat", f"{users} of {ns[0]}", *(app(0, 1, call(0, 1, n, 8)) for n in ns)
        )
        for users, ns in ((1, [80]), (1, [400]), (4, [80, 90, 100, 110]))
    ]
    start = StepCost(step_s=0.02, fill_s=0.002, sequence_s=0.002, attend_s=3e-6)
    found = calibrate(chats, SimulatedConfig(cost=start), rounds=8)
    assert found.cost.attend_s == pytest.approx(20e-6, rel=0.1)
    users = [app(0, 1, call(0, 1, 300 + own, 8)) for own in (20, 30, 40)]
    (one,) = foretell([measured("copilot", "3 users", *users, shared=300)], found)
    assert one.error == pytest.approx(0, abs=0.05)


def test_the_points_of_a_report() -> None:
    """There is a case for each of our points and round trips, with the time outside of calls."""
    runs = [
        {"system": system, "point": point, "delay_ms": delay, "cache": "cold", "repeat": repeat}
        | {"apps": [app(0.0, 2.0 + repeat, call(0.25, 1.5, 50, 4, 32))]}
        for system in ("langchain-vllm", "weftline")
        for point, delay in (("2 users", 0), ("3 users", 250))
        for repeat in (0, 1)
    ]
    found = list(cases({"workload": "copilot", "runs": runs}))
    assert [(o.point, o.delay_ms, o.seconds, o.overhead_s, o.shared) for o in found] == [
        ("2 users", 0, 2.5, 0.5, 32),
        ("3 users", 250, 2.5, 0.5, 32),
    ]
    assert [(one.prefill_s, one.generate_s, one.warm) for one in found] == [(1.0, 0.5, 32)] * 2
    assert list(cases({"workload": "agent_loop", "runs": runs})) == []
    report = {"workload": "copilot", "runs": runs}
    assert timed({"copilot": report, "copilot-ablation": report}) == found


def test_an_application_ends_with_its_last_sink() -> None:
    """Two independent calls take as long as the longer one."""

    async def main(loop: VirtualLoop) -> float:
        async with world(loop, HIDDEN) as made:
            program = [Step(own=10, output=2), Step(own=10, output=5)]
            ran = await perform(made, program, 0, phases=True)
            assert ran.generate_s == pytest.approx([0.038, 0.038 + 3 * 0.034])
            return ran.seconds

    assert run(main) == pytest.approx(0.03 + 0.02 + 0.038 + 3 * 0.034)


def test_a_client_that_makes_every_call_pays_each_round_trip() -> None:
    """The second of two calls reads the first. The client pays a round trip for each."""

    async def main(loop: VirtualLoop) -> tuple[float, float]:
        async with world(loop, HIDDEN) as made:
            program = chain(2, own=40, output=3)
            sent = await perform(made, program, "sent")
            return sent.seconds, await by_client(made, program, "by client", 0.2)

    sent, by_itself = run(main)
    assert by_itself - sent == pytest.approx(2 * 0.2)


def test_tokens_cached_before_are_not_computed_again() -> None:
    """All prompts begin with the same 50 tokens, of which 30 are in the cache before."""
    cold = Case("copilot", "1 users", [app(0, 1, call(0, 1, 80, 3))], 1.0, 0.0, 50)
    (found, again) = (replay([one], HIDDEN)[0] for one in (cold, replace(cold, warm=30)))
    assert found.prefill_s - again.prefill_s == pytest.approx(0.030)


def test_a_mix_of_applications_on_several_engines() -> None:
    """All applications end, and a second simulation gives the same times. `app` brings users of one
    system prompt together; `request` does so only by chance."""
    found = [simulate(3, 200, policy, HIDDEN) for policy in ("app", "request")]
    for one in found:
        assert sum(len(mix(i)[1]) for i in range(one.applications)) == one.calls >= 200
        assert 0.2 < one.busy <= 1.0
    assert found[0].cached > 1.2 * found[1].cached > 0
    assert list(compare(found)) == [3]
    assert simulate(3, 200, "app", HIDDEN) == found[0]


def test_the_shapes_of_the_mix() -> None:
    """The outputs that a call reads count as its prompt."""
    assert prompt_tokens(chain(3, own=10, output=4)) == 10 + 14 + 14
    assert prompt_tokens(map_reduce(3, own=10, output=4, joined=5)) == 30 + 5 + 12
