"""A session's lifetime: requests that name it and readers that wait in it keep it, nothing else
does.
"""

from __future__ import annotations

from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.session import events as ev


def test_an_unused_session_expires() -> None:
    """Each request starts the time again. A waiting reader keeps the session for as long as it
    waits.
    """
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
    """An id has the number of the server's run and 128 random bits."""
    registry = Registry(RegistryConfig())
    first = registry.open("t", now=0.0)
    registry.end(first, now=1.0)
    others = {registry.open("t", now=0.0).id for _ in range(100)}
    assert len(others | {first.id}) == 101
    assert {len(id.split("_")[2]) for id in others} == {32}
    assert {id.split("_")[1] for id in others} == {first.id.split("_")[1]}


def test_tenants_share_no_cache() -> None:
    """A tenant's salt is the same for all its calls. Other tenants and other servers have other
    salts.
    """
    one, other = Registry(RegistryConfig()), Registry(RegistryConfig())
    assert one.salts["a"] == one.salts["a"]
    assert len({one.salts["a"], one.salts["b"], other.salts["a"]}) == 3
