"""Why a call ran on its engine: what placement weighed is kept with the call, and shown."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.asgi import Serve, call
from weftline_engine.api import Hints
from weftline_server.commands.trace import why
from weftline_server.config import ServerConfig
from weftline_server.schedule.placement.round import MOST_SHOWN, place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued
from weftline_server.schedule.placement.scores import PREFIX_WEIGHT, Candidate

TOKENS = st.integers(0, 5000)


def engine(name: str, **more: object) -> EngineLoad:
    return EngineLoad(**{"name": name, "model": "m", **more})  # type: ignore[arg-type]


@given(
    criterion=st.sampled_from(["latency", "throughput"]),
    group=st.sampled_from(["", "g"]),
    loads=st.tuples(TOKENS, TOKENS, TOKENS),
    is_there=st.booleans(),
)
def test_the_terms_add_up_to_the_score(
    criterion: str, group: str, loads: tuple[int, int, int], is_there: bool
) -> None:
    """What is shown is what decided."""
    latency, grouped, throughput = loads
    load = engine(
        "e",
        latency=latency,
        grouped=grouped,
        throughput=throughput,
        groups={"g": 1},
        prefixes={"h"} if is_there else set(),
    )
    hints = Hints(criterion=criterion, group=group)
    item = Queued(
        id="a",
        model="m",
        kind="generate",
        queued=0,
        tokens=900,
        hints=hints,
        prefixes=(("h", 700),),
    )
    candidate = Candidate(load)
    cost = candidate.cost(item, item.throughput or item.grouped)
    one = candidate.terms(item, cost, True)
    assert one.score == cost
    assert one.missing == candidate.missing(item) == (200 if is_there else 900)
    assert one.prefix == PREFIX_WEIGHT * one.missing


def test_the_chosen_engine_comes_first_then_the_next_cheapest() -> None:
    """Of many engines a few are kept. One without room is named as such, whatever it costs."""
    loads = [engine(f"e{n}", latency=100 * n, held=100 * n) for n in range(3)]
    full = engine("a", running=1, max_running=1)
    item = Queued(id="x", model="m", kind="generate", queued=0, tokens=10, hints=Hints())
    (found,) = place([item], [full, *reversed(loads)], "app", 0.0)
    shown = [(one.engine, one.room, one.score) for one in found.why]
    assert shown == [("e0", True, 40), ("e1", True, 140), ("e2", True, 240), ("a", False, 40)]
    many = [engine(f"e{n:03}", latency=n, held=n) for n in range(100)]
    (found,) = place([item], many, "app", 0.0)
    assert [one.engine for one in found.why] == ["e000", "e001", "e002", "e003"]
    assert len(found.why) == MOST_SHOWN


@pytest.mark.parametrize("tenants", [1, 2])
async def test_another_tenants_load_is_not_shown(serve: Serve, tenants: int) -> None:
    """Where tenants share the engines, a call names only what its own tenant's work decided."""
    keys = {"ka": "a", "kb": "b"} if tenants == 2 else {"ka": "a"}
    server = await serve(config=ServerConfig(keys=keys), headers={"Authorization": "Bearer ka"})
    session = await server.session()
    await server.submit(session, call("draft", "one two {{output:x}}", x="x"))
    await server.http.post("/v1/get", json={"session_id": session, "semantic_var_id": "x"})
    graph = (await server.http.get(f"/v1/session/{session}/graph")).json()
    ((one,),) = [found["placement"] for found in graph["calls"]]
    assert (one["engine"], one["room"], one["prefix"]) == ("null", True, 4 * one["missing_tokens"])
    assert ("load" in one, "score" in one, "gather" in one) == (tenants == 1,) * 3
    id = graph["calls"][0]["call_id"]
    shown = (await server.http.get(f"/v1/session/{session}/call/{id}")).json()
    assert shown["placement"] == [one]
    line = why(graph).splitlines()[1].split()
    assert (line[:2], line[-1]) == (["draft", "null"], "chosen")
    assert line[2] == ("-" if tenants == 2 else f"{one['score']:,.0f}")


async def test_a_wait_for_kv_cache_is_told(serve: Serve) -> None:
    """A call whose application is not admitted waits for KV cache; then it waits no more for it."""
    server = await serve()
    dispatcher = server.driver.dispatcher
    session = await server.session()
    dispatcher._queue.allow(session, False, monotonic())
    await server.submit(session, call("draft", "one two {{output:x}}", x="x"))
    async with asyncio.timeout(30):
        while not dispatcher.queued:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
    assert not dispatcher.members[0].ops.works
    dispatcher._queue.allow(session, True, monotonic())
    dispatcher.advise()
    assert (await server.get(session, "x")).status_code == 200
    (step,) = (await server.graph(session))["calls"][0]["steps"]
    assert 0 < step["kv_s"] <= step["queue_s"]
    await server.submit(session, call("next", "one two {{output:y}}", y="y"))
    assert (await server.get(session, "y")).status_code == 200
    (step,) = (await server.graph(session))["calls"][1]["steps"]
    assert step["kv_s"] == 0
