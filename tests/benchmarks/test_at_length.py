"""Sessions at the lengths that agents have, on a simulated GPU: what scaling them may change."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu import roofline
from bench.micro import replay as command
from bench.replay import at_length
from bench.replay.at_length import Regime
from bench.replay.production import LRU, OURS, replay
from bench.replay.trace import Recorded, Turn, drawn
from tests.simulator.agents import Agents, simulate
from weftline.errors import InvalidRequest
from weftline_engine.pretend.host_tier import HostOrder
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost

CUT = [Recorded(one.id, one.turns[:8]) for one in drawn(12)]


def test_what_a_device_holds() -> None:
    """An H100 holds 403,900 tokens beside an 8B shape, a twentieth of them after scaling. Beside a
    32B shape it holds no session, and says so."""
    config = Regime(shape="8b", device="H100").config()
    assert (config.kv_tokens, config.context_limit) == (20_195, 6_553)
    assert Regime(shape="32b", device="H200").config().kv_tokens > 0
    with pytest.raises(InvalidRequest, match=r"a H100 holds [0-9,]+ tokens of KV cache beside 32b"):
        Regime(shape="32b", device="H100").config()


def test_a_pause_is_an_agents() -> None:
    """Lengths are divided by 20. A pause of an hour counts as a minute. A request beyond the
    model's context is left out, and so is a session with few requests."""
    turn = Turn(input=40_000, output=100, shared=20_000, think_s=3600.0)
    long = Recorded("a", (*[turn] * 8, Turn(input=200_000, output=5)))
    (found,) = Regime(shape="8b", device="H100").scaled([long, Recorded("b", (turn,) * 7)])
    assert found.turns == (Turn(input=2_000, output=5, shared=1_000, think_s=60.0),) * 8


@pytest.mark.parametrize("system", [LRU, OURS])
def test_scaling_changes_nothing(system: str) -> None:
    """A cell with lengths divided by 20 and by 4: as many sessions a minute, within 5 %, and the
    engine is busy for as long, within 4 %."""
    found = []
    for scale in (20, 4):
        regime = Regime(shape="8b", device="H100", scale=scale)
        sessions, config = regime.scaled(CUT), regime.config()
        pool = config.kv_tokens
        outcome = replay(sessions, system, at_once=12, pool=pool, config=config)
        found.append(at_length.row(outcome, scale))
    coarse, fine = found
    assert coarse["sessions_per_minute"] == pytest.approx(fine["sessions_per_minute"], rel=0.05)
    assert coarse["busy_share"] == pytest.approx(fine["busy_share"], abs=0.04)


def test_the_command_prints_each_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One row a system and a semaphore, with the pressure that the sessions make."""
    words = "replay --device H100 --sessions 10 --turns 9 --pressures 2 --systems LRU,weftline"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--folder", str(tmp_path)])
    assert command.main() == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) >= 3 and all(line.startswith("pressure 2.") for line in lines)
    assert [line for line in lines if "system weftline" in line] == lines[-1:]
    assert (tmp_path / "replay-drawn-H100-8b.json").exists()


def test_short_contexts_gain_as_well() -> None:
    """An application of each of 32 agents with contexts of 3,072 tokens and tools of 0.5 s, on an
    H200 whose cache holds a third of them. At least as many end in a minute as without the server,
    and one takes less than 0.75 of the time in the mean. With 92 a minute without the server, three
    runs gave 101 to 108."""
    agents = Agents(applications=32, shared=0, task=2272, result=60)
    config = replace(
        roofline.config(roofline.SHAPES["Llama-3-8B"], roofline.H200, roofline.VLLM),
        kv_tokens=agents.pool,
    )
    assert agents.tokens == 3072 and agents.pool == 32_768
    off = frozenset({"admission", "retention"})
    lru = simulate(agents, replace(config, predicts=False), off)
    ours = simulate(agents, config, frozenset())
    assert max(ours.ended) < max(lru.ended)
    assert ours.row["mean_s"] < 0.75 * lru.row["mean_s"]


def test_host_memory_is_used_in_a_replay() -> None:
    """Six sessions on a cache for two. With host memory for all the same sessions end in less than
    two thirds of the time, and fewer tokens are computed."""
    turns = tuple(
        Turn(input=600 + 200 * at, output=20, shared=580 + 200 * at if at else 0, think_s=4.0)
        for at in range(5)
    )
    sessions = [Recorded(f"s{number}", turns) for number in range(6)]
    config = SimulatedConfig(cost=StepCost(fill_s=0.005, copy_s=0.0002), part_tokens=8)
    found = {}
    for host in (0, 20_000):
        order = HostOrder.NEXT_USE if host else None
        made = SimulatedConfig(cost=config.cost, part_tokens=8, host_tokens=host, host_order=order)
        found[host] = replay(sessions, OURS, at_once=6, pool=3000, config=made)
    assert found[20_000].seconds < 0.67 * found[0].seconds
    assert found[20_000].computed <= found[0].computed
