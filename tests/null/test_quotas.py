"""A tenant's limits where several servers share a store: what it has elsewhere counts, too."""

from __future__ import annotations

import pytest

from weftline.errors import Overloaded
from weftline_server.observe.advice.advice_rows import merged_advice
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.runtime.tenant_tally import TenantTally

LIMITS = RegistryConfig(max_sessions=3, max_queued=100, max_queued_of_tenant=10, max_bytes=1000)


def test_what_a_tenant_has_elsewhere_counts() -> None:
    """Its sessions, its calls that wait, with those of a submit, and its bytes. Another tenant is
    not touched."""
    registry = Registry(LIMITS)
    quotas = registry.quotas
    registry.open("a", 0.0)
    quotas.admit("a", 9, 9)
    quotas.elsewhere = {"a": TenantTally(sessions=1, queued=1, value_bytes=1)}
    registry.open("a", 0.0)
    with pytest.raises(Overloaded, match="3 sessions are open"):
        registry.open("a", 0.0)
    with pytest.raises(Overloaded, match="10 calls of yours wait"):
        quotas.admit("a", 9, 9)
    quotas.admit("a", 8, 8)
    quotas.admit("a", 5, 5, more=4)  # one waits elsewhere
    with pytest.raises(Overloaded, match="6 calls of yours wait"):
        quotas.admit("a", 5, 5, more=5)
    quotas.elsewhere = {"a": TenantTally(value_bytes=1000)}
    with pytest.raises(Overloaded, match="1,000 bytes of values"):
        quotas.admit("a", 0, 0)
    registry.open("b", 0.0)
    quotas.admit("b", 9, 9)
    registry.open("a", 0.0)
    assert registry.opened == {"a": 3, "b": 1}


def test_the_advice_of_servers_is_added_up() -> None:
    """A program that two servers have seen is one row, with the words of the one that lost more."""

    def row(id: str, lost: int, says: str) -> dict[str, object]:
        counts = {"calls": 2, "times": 1, "prompt_tokens": 100, "cached_tokens": 10}
        return {"id": id, "lost_tokens": lost, "says": says, **counts}

    one = {"advice": [row("p", 50, "at one"), row("q", 40, "q")], "total": 2}
    other = {"advice": [row("r", 80, "r"), row("p", 60, "at other")], "total": 7}
    found = merged_advice([one, other], 2)
    assert [(one["id"], one["lost_tokens"]) for one in found["advice"]] == [("p", 110), ("r", 80)]
    first = found["advice"][0]
    assert (first["says"], first["calls"], first["cached_tokens"]) == ("at other", 4, 20)
    assert found["total"] == 8
