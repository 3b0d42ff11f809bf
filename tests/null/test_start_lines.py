"""What a server says of its engines when it starts."""

from __future__ import annotations

from weftline_engine.api import LACKING, Capability
from weftline_server.commands.http_server import lacking
from weftline_server.runtime.service import EngineStatus
from weftline_server.schedule.engines.member import EngineState

SALT = LACKING[Capability.SALT]
OTHER = next(words for capability, words in LACKING.items() if capability != Capability.SALT)


def engine(name: str, *lacks: str, model: str = "m") -> EngineStatus:
    """An engine that is ready."""
    return EngineStatus(
        name=name,
        state=EngineState.READY,
        model=model,
        node="",
        lacks=lacks,
        last_error="",
        running=0,
        tokens=0,
        kv_tokens=None,
        kept=0,
        kv_costs=None,
        kv_bytes=None,
        metrics=None,
    )


def test_what_engines_lack_is_said_once() -> None:
    """Not for each of several alike, and not for the null engine."""
    alike = [engine("a", SALT, OTHER), engine("b", SALT, OTHER), engine("c", OTHER), engine("d")]
    null = engine("null", OTHER, model="null")
    assert list(lacking([*alike, null], several_tenants=False)) == [
        f"each of a, b {SALT}; {OTHER}",
        f"engine c {OTHER}",
    ]
    assert list(lacking([null, engine("d")], several_tenants=True)) == []


def test_tenants_hear_of_a_shared_cache() -> None:
    """An engine without salts can tell one tenant of another by its speed."""
    assert list(lacking([engine("a", SALT)], several_tenants=True)) == [
        "engine a is shared by several tenants and does not part their caches: the time of an "
        "answer may tell a tenant of another's prompts",
        f"engine a {SALT}",
    ]
