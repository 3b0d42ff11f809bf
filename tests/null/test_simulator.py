"""The simulator's programs: what an application takes as one graph, and call by call."""

from __future__ import annotations

import pytest

from tests.simulator.programs import Step, by_client, chain, perform
from tests.simulator.world import world
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

HIDDEN = SimulatedConfig(cost=StepCost(step_s=0.03, fill_s=0.001, sequence_s=0.004))


def test_an_application_ends_with_its_last_sink() -> None:
    """Two independent calls take as long as the longer one."""

    async def main(loop: VirtualLoop) -> float:
        async with world(loop, HIDDEN) as made:
            program = [Step(own=10, output=2), Step(own=10, output=5)]
            ran = await perform(made, program, 0)
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
