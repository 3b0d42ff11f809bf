"""The promises of the policy to whoever waits, kept on simulated engines beside other traffic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bench.simulator.beside import Traffic, beside
from bench.simulator.calibration import start_from
from bench.simulator.programs import Step, map_reduce
from weftline.protocol import Criterion
from weftline_engine.api import MOST_OVERTAKEN_S
from weftline_engine.simulated import SimulatedConfig, StepCost

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
        waits += beside(BUSY, traffic).jobs_s
    assert waits[0] == waits[1] < MOST_OVERTAKEN_S


def test_a_large_call_finds_room_beside_small_ones() -> None:
    """A prompt as long as the whole cache starts, although small calls could take each free block
    before it.
    """
    small = SimulatedConfig(cost=BUSY.cost, kv_tokens=4096)
    traffic = Traffic(every_s=0.32, chats_s=120.0, jobs={5.0: [Step(own=3800, output=40)]})
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
    found = beside(start_from(), traffic, engines=4).engines
    [gathered] = set(found["job"])
    assert Counter(found["chat"])[gathered] < 2


def test_maps_leave_an_engine_to_the_chats() -> None:
    """Sixteen maps under a reduce that somebody waits for go to three of four engines."""
    job = {10.0: map_reduce(16, own=400, output=40)}
    found = beside(start_from(), Traffic(every_s=0.5, chats_s=20.0, jobs=job), engines=4).engines
    assert len(set(found["job"][:16])) == 3
