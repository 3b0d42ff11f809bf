"""Many servers that place calls on the same engines find about as much in the caches as one."""

from __future__ import annotations

from dataclasses import replace

from tests.simulator.many_servers import ManyServers, Simulation

# A sixty-fourth of 1,024 engines and 1,000,000 sessions an hour.
FEW = ManyServers(
    servers=8, engines=16, sessions_per_hour=15_625, warm_s=20.0, counted_s=60.0, applications=64
)


def test_servers_without_a_master_keep_its_cache_hits() -> None:
    """Eight servers keep nine tenths of one master's hits, and no engine is much busier."""
    master = Simulation(replace(FEW, servers=1)).run()
    many = Simulation(FEW).run()
    assert many.calls > 500
    assert many.hits >= 0.9 * master.hits
    assert many.engines <= 1.3 * master.engines
