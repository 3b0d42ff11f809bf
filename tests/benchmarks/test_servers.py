"""`weftline bench servers`: its parts measure what they say, at a size of a few requests."""

from __future__ import annotations

import pytest

from bench.micro import servers
from tests.cluster import conftest as cluster
from tests.cluster.database import Databases

postgres, stores = cluster.postgres, cluster.stores  # the fixtures of that suite


def test_two_servers_answer_as_one_does(stores: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request's value is checked where it is measured. A chain of 20 calls has 19 gaps. The
    CPU time of a database that is not the program's own is not known.
    """
    monkeypatch.setattr(servers, "AT_ONCE", 8)
    found = servers.pairs(servers.Store(stores.address()), 1, 2)
    ratios = found["two_over_one"]
    assert set(ratios) == {"calls_per_s", "gap_p99_ms", "cpu_ms_per_call"}
    for name, ratio in ratios.items():
        (one,), (two,) = found["one"], found["two"]
        assert one[name] > 0 and two[name] > 0
        assert one["store_ms_per_call"] == two["store_ms_per_call"] == 0
        assert ratio["each"] == [round(two[name] / one[name], 3)]


def test_a_hop_is_read_in_turns(stores: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is owned by the first server. There are quartiles of both reads, and of the
    difference of each pair.
    """
    monkeypatch.setattr(servers, "HOPS", 8)
    found = servers.hop(stores.address())
    assert set(found) == {"owner_ms", "other_ms", "hop_ms"}
    assert all(one == sorted(one) and len(one) == 3 for one in found.values())
    assert stores.run("SELECT DISTINCT epoch FROM weftline.sessions") == [(1,)]
