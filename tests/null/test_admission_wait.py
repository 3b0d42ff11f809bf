"""The bound on the wait of a session outside a KV cache, as docs/serving.md states it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine.api import Usage
from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.constants import FORCED_EVERY_S, PATIENCE_S
from weftline_server.schedule.memory.gate import Gate
from weftline_server.schedule.memory.habits import Habits

POOL = 1000
HORIZON = 1e6


def session(name: str, tokens: int, tenant: str, now: float) -> Application:
    one = Application(name, "m", True, now, now, Habits(first=tokens, size=tokens), salt=tenant)
    one.first = one.size = tokens
    return one


def computed_again() -> Usage:
    """A prompt of which nothing was cached any more, and whose computation took no time."""
    return Usage(prompt_tokens=POOL, cached_tokens=0, output_tokens=1, started=0.0, filled=0.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, POOL), st.sampled_from("uv")),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 3),
)
def test_the_nth_session_outside_waits_so_long_at_most(
    arrivals: list[tuple[int, int, str]], every_s: int
) -> None:
    """The cache is full, its contexts are computed again, and no session ever ends. Small ones keep
    coming, and whoever gives up its room comes back at once. All the same, the n-th session that
    waits enters after 120 + 30 n seconds, whatever its size and tenant.
    """
    gate = Gate()
    gate.use("m").busy.note(1.0, 0.0)
    gate.computed("m", computed_again(), known=POOL, horizon=HORIZON)
    gate.arrive(session("in", POOL, "u", -1.0))
    assert gate.admit("m", POOL, -1.0)
    outside: dict[str, Application] = {}
    bounds: dict[str, float] = {}

    def waits(name: str, size: int, tenant: str, now: float) -> None:
        one = session(name, size, tenant, now + len(bounds) / 1e6)  # no two at the same time
        place = 1 + len(outside)
        each = FORCED_EVERY_S + 1.0  # the gate is asked once a second
        outside[one.id], bounds[one.id] = one, now + PATIENCE_S + 1.0 + each * place
        gate.arrive(one)

    for now in range(400):
        for number, (at, size, tenant) in enumerate(arrivals):
            if at == now:
                waits(f"s{number}", size, tenant, now)
        if now < 20 and now % every_s == 0:
            waits(f"small{now}", 1, "u", now)
        inside = {name for name in bounds if gate.is_admitted(name)}
        gate.admit("m", POOL, float(now))
        for name in list(outside):
            if gate.is_admitted(name):
                del outside[name]
        for name in inside:
            if not gate.is_admitted(name) and now < 20:
                waits(name, 1, "u", now)
        assert all(now <= bounds[name] for name in outside)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(POOL // 2, POOL),
    st.lists(st.integers(1, POOL // 4), min_size=1, max_size=4),
    st.integers(1, 20),
    st.booleans(),
)
def test_a_large_session_waits_so_long_beside_small_ones(
    size: int, smalls: list[int], lasts_s: int, again: bool
) -> None:
    """One session needs at least half of the cache. Small ones keep coming, two a second, and each
    that is inside ends after some seconds. The large one enters after 150 seconds at most, whether
    contexts are computed again or not.
    """
    gate = Gate()
    gate.use("m").busy.note(1.0, 0.0)
    known = POOL if again else 0
    gate.computed("m", computed_again(), known=known, horizon=HORIZON)
    gate.arrive(session("large", size, "u", 0.5))
    entered: dict[str, float] = {}
    for half in range(2 * int(PATIENCE_S + FORCED_EVERY_S) + 2):
        now = half / 2
        gate.arrive(session(f"small{half}", smalls[half % len(smalls)], "u", now))
        gate.admit("m", POOL, now)
        if gate.is_admitted("large"):
            return
        for name in [f"small{n}" for n in range(half + 1)]:
            if gate.is_admitted(name) and now - entered.setdefault(name, now) >= lasts_s:
                gate.forget(name)
    raise AssertionError("the large session waits longer than docs/serving.md says")
