"""What the engines do now: batch, queue, KV pool and rates, and what a tenant may see of them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.null.asgi import Serve, Server, call
from tests.null.test_words_engine import words_engine
from weftline_engine.api import Residency
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.observe.engine_rates import EngineRates
from weftline_server.schedule.engines.activity import EngineActivity, Tokens
from weftline_server.schedule.engines.member import EngineState
from weftline_server.schedule.engines.prefix_index import PrefixEstimate, PrefixIndex

SLOW = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=60.0))


async def engine(server: Server, key: str = "", name: str = "null") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = await server.http.get("/v1/engines", headers=headers)
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in answer.json()["engines"]}
    return rows[name]


async def test_tokens_are_counted_and_the_pool_adds_up(serve: Serve) -> None:
    """A prompt of 42 words is computed, a second one is read from the cache but for its end."""
    server = await serve(
        NullConfig(), ServerConfig(), None, {"words": words_engine(kv_tokens=4096)}
    )
    text = " ".join(f"word{n}" for n in range(40))
    for end in ("one", "two"):
        body = {"model": "words", "prompt": f"{text} {end}", "max_tokens": 4}
        assert (await server.http.post("/v1/completions", json=body)).status_code == 200
    row = await engine(server, name="words")
    assert (row["state"], row["running"], row["waiting"]) == ("ready", 0, 0)
    assert row["tokens"] == {"computed": 42, "cached": 40, "output": 8}
    pool = row["pool"]
    assert (pool["size"], pool["running"]) == (4096, 0)
    assert pool["kept"] + pool["evictable"] >= 40
    assert pool["kept"] + pool["evictable"] <= pool["size"]


async def test_a_tenant_sees_its_own_calls_alone(serve: Serve) -> None:
    """What other tenants' calls make of an engine is null, but for the tenant of the metrics."""
    config = ServerConfig(keys={"ka": "a", "kb": "b", "kc": "c"}, metrics_tenant="c")
    server = await serve(SLOW, config, headers={"Authorization": "Bearer ka"})
    session = await server.session()
    await server.submit(session, call("draft", "one {{output:x}}", x="x"))
    for _ in range(10):  # the call is on its way when the submit is answered
        await asyncio.sleep(0)
    a, b, c = [await engine(server, key) for key in ("ka", "kb", "kc")]
    assert [row["running"] for row in (a, b, c)] == [1, 0, 1]
    for row in (a, b):
        assert (row["tokens"], row["pool"], row["rates"], row["max_running"]) == (None,) * 4
    assert c["tokens"] == {"computed": 0, "cached": 0, "output": 0}
    assert c["max_running"] == SLOW.max_running


def test_rates_are_means_of_the_last_seconds() -> None:
    """The first look has none. A burst of seven seconds ago no longer counts."""
    rates = EngineRates()

    def look(now: float, output: int) -> dict[str, float] | None:
        tokens = Tokens(computed=0, cached=0, output=output)
        row = EngineActivity("e", EngineState.READY, "m", 0, 8, 0, tokens, None)
        (found,) = rates.rows([row], now)
        rate: dict[str, float] | None = found["rates"]
        return rate

    assert look(0.0, 0) is None
    assert look(1.0, 100) == {"computed": 0.0, "cached": 0.0, "output": 100.0}
    assert look(4.0, 100) == {"computed": 0.0, "cached": 0.0, "output": 25.0}
    assert look(8.0, 110) == {"computed": 0.0, "cached": 0.0, "output": 10 / 7}
    assert look(9.5, 110) == {"computed": 0.0, "cached": 0.0, "output": 10 / 5.5}
    assert look(13.0, 110) == {"computed": 0.0, "cached": 0.0, "output": 0.0}


def test_held_tokens_count_once_and_not_those_of_running_calls() -> None:
    """Two contexts share 32 tokens; one of them was copied to the host."""
    index = PrefixIndex()
    index.expect("c", (("a", 32), ("ab", 64)))
    assert index.held(()) == (0, 0)  # it is not there yet
    index.moved("c", Residency.RESIDENT, 70)
    index.expect("d", (("a", 32), ("ad", 96)))
    index.moved("d", Residency.HOST, 100)
    assert index.held(()) == (70, 68)
    assert index.held({"a"}) == (38, 68)
    estimate = PrefixEstimate(1000)
    estimate.expect("c", (("a", 32), ("ab", 64)))
    assert (estimate.held(()), estimate.held({"ab"})) == ((64, 0), (32, 0))
