"""How long a session lives: it is kept by whoever names it or waits in it, and by nothing else."""

from __future__ import annotations

from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.session import events as ev


def test_a_session_expires_when_nobody_names_it_for_its_time() -> None:
    """Each request begins the time anew; a reader that waits is somebody, however long."""
    registry = Registry(RegistryConfig(idle_s=10.0))
    left, named, read = (registry.open("t", now=0.0) for _ in range(3))
    named.handle(ev.VariableSet(now=5.0, variable="x", value="1"))
    read.handle(ev.ReaderOpened(now=0.0, variable="v", wait=True))
    assert registry.idle(10.0) == []
    assert registry.idle(11.0) == [left]
    assert registry.idle(16.0) == [left, named]
    read.handle(ev.ReaderClosed(now=16.0, variable="v", served=True))
    assert registry.idle(16.0) == [left, named]
    assert registry.idle(27.0) == [left, named, read]


def test_no_id_is_used_again_or_can_be_guessed() -> None:
    """128 random bits, behind which run of the server it was."""
    registry = Registry(RegistryConfig())
    first = registry.open("t", now=0.0)
    registry.forget(first)
    others = {registry.open("t", now=0.0).id for _ in range(100)}
    assert len(others | {first.id}) == 101
    assert {len(id.split("_")[2]) for id in others} == {32}
    assert {id.split("_")[1] for id in others} == {first.id.split("_")[1]}


def test_tenants_share_no_cache() -> None:
    """A salt is a tenant's own, the same for all its calls, and another in another server."""
    one, other = Registry(RegistryConfig()), Registry(RegistryConfig())
    assert one.salt("a") == one.salt("a")
    assert len({one.salt("a"), one.salt("b"), other.salt("a")}) == 3
