"""Where servers that place calls on the same engines compute a prefix that no engine has."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Hints
from weftline_server.schedule.placement.home import HOME_TOKENS, home
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued

NAMES = [f"e{n}" for n in range(8)]


def load(name: str, **more: Any) -> EngineLoad:
    return EngineLoad(**{"name": name, "model": "m", "servers": 2, **more})


def call(prefix: str, *more: tuple[str, int]) -> Queued:
    prefixes = ((prefix, 100), *more)
    return Queued(
        id="c", model="m", kind="generate", queued=0.0, tokens=100, hints=Hints(), prefixes=prefixes
    )


def placed(item: Queued, *engines: EngineLoad, policy: str = "app") -> str:
    [one] = place([item], engines, policy, 0.0)
    assert not one.why or one.why[0].engine == one.engine
    return one.engine


def test_servers_choose_the_same_engine_and_prefixes_are_spread() -> None:
    """Whichever order the engines come in. Of 800 prefixes each engine gets about 100. When an
    engine is gone, the prefixes of the others stay.
    """
    engines = [load(name) for name in NAMES]
    homes = {n: placed(call(f"p{n}"), *engines) for n in range(800)}
    assert all(placed(call(f"p{n}"), *engines[::-1]) == homes[n] for n in range(50))
    counts = Counter(homes.values())
    assert len(counts) == 8 and max(counts.values()) < 150
    left = {n: placed(call(f"p{n}"), *engines[1:]) for n in range(200)}
    assert all(left[n] == homes[n] for n in left if homes[n] != "e0")


def test_a_server_alone_takes_the_cheapest() -> None:
    """Also by the policy that looks at each request by itself. A prefix that an engine has stays
    there.
    """
    engines = [load(name, servers=1) for name in NAMES]
    assert {placed(call(f"p{n}"), *engines) for n in range(20)} == {"e0"}
    shared = [load(name) for name in NAMES]
    assert {placed(call(f"p{n}"), *shared, policy="request") for n in range(20)} == {"e0"}
    assert placed(call("p"), *shared[1:], load("e0", prefixes={"p"})) == "e0"


def test_a_new_conversation_of_a_known_application_has_a_home_of_its_own() -> None:
    """All engines have the application's prompt: the first prefix that is missing decides."""
    engines = [load(name, prefixes={"app"}) for name in NAMES]
    homes = {placed(call("app", (f"s{n}", 100)), *engines) for n in range(40)}
    assert len(homes) > 4


def test_a_conversation_stays_where_its_beginning_is() -> None:
    """Its next prefix is missing everywhere. Engines that lack more are no home for it, though they
    cost little more.
    """
    engines = [load(name, prefixes={"s100"} if name == "e5" else set()) for name in NAMES]
    homes = {placed(call("s100", (f"s{n}", 100)), *engines) for n in range(40)}
    assert homes == {"e5"}


@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=8), st.text(max_size=4))
def test_a_home_costs_little_more_than_the_cheapest(costs: list[float], prefix: str) -> None:
    """Never as much as HOME_TOKENS more."""
    costs.sort()
    place = home(prefix, list(zip(costs, NAMES, strict=False)))
    assert costs[place] - costs[0] < HOME_TOKENS


def test_the_busier_engine_is_the_home_of_fewer() -> None:
    """One has half of the tokens that a home may have more: it gets about a third of two."""
    engines = [(0.0, "idle"), (HOME_TOKENS / 2, "busy")]
    counts = Counter(home(f"p{n}", engines) for n in range(3000))
    assert 800 < counts[1] < 1200
