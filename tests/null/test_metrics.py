"""GET /metrics: the numbers are right, and clients cannot create labels."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.null.asgi import Serve, Server, call
from tests.waits import until
from weftline_engine.api import Usage
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.config import ServerConfig
from weftline_server.observe.cost import Price, Prices
from weftline_server.observe.tally import Durations

SERVING = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text()

OF_METRICS = ("route", "/metrics")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(server: Server) -> Samples:
    """Every sample by its name and labels."""
    answer = await server.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The one sample of this name and these labels."""
    return samples.get((f"weftline_{name}", frozenset(labels.items())))


async def test_calls_and_tokens_are_counted(serve: Serve) -> None:
    """One of three calls succeeds, one fails in its transform, and so does the reader of the failed
    one.
    """
    server = await serve()
    session = await server.session()
    bad = {"in_out": "out", "semantic_var_id": "y", "transforms": [{"op": "json"}]}
    await server.submit(
        session,
        {**call("good", "one two three{{output:x}}", x="x"), "criteria": "throughput"},
        call("bad", "no json{{output:y}}", y=bad),
        call("below", "{{input:y}}{{output:z}}", y="y", z="z"),
    )
    assert (await server.get(session, "x")).status_code == 200
    assert (await server.get(session, "z")).status_code == 422
    samples = await scrape(server)

    def calls(engine: str, state: str, criterion: str) -> float | None:
        return value(
            samples, "calls_total", model="null", engine=engine, state=state, criterion=criterion
        )

    assert calls("null", "done", "throughput") == 1
    assert calls("null", "failed", "latency") == 1
    assert calls("none", "failed", "latency") == 1
    where = {"model": "null", "engine": "null"}
    assert value(samples, "prompt_computed_tokens_total", **where) == 5
    assert value(samples, "prompt_cached_tokens_total", **where) == 0
    assert value(samples, "output_tokens_total", **where) == 5
    for phase in ("queue", "fill", "generate", "transform"):
        labels = {"phase": phase, "model": "null"}
        assert value(samples, "phase_seconds_count", **labels, criterion="throughput") == 1
        assert value(samples, "phase_seconds_count", **labels, criterion="latency") == 1


async def test_running_and_waiting_calls_are_gauges(serve: Serve) -> None:
    """The engine has two places. Two of three calls run, one waits. Closing the session
    ends them.
    """
    server = await serve(NullConfig(max_running=2, latency=LatencyProfile(step_s=60)))
    session = await server.session()
    await server.submit(session, *(call(f"c{i}", f"w{i}{{{{output:x}}}}", x=f"x{i}")
                                   for i in range(3)))  # fmt: skip
    # The calls are on their way when the submit is answered.
    status = server.service.engines.status
    await until(lambda: (status().queued, status().engines[0].running) == (1, 2))
    samples = await scrape(server)
    assert value(samples, "queue_length") == 1
    assert value(samples, "running_calls", engine="null") == 2
    assert value(samples, "running_tokens", engine="null") == 2 * (1 + 512)
    assert value(samples, "sessions_open") == 1
    assert value(samples, "engine_state", engine="null", state="ready") == 1
    assert value(samples, "engine_state", engine="null", state="down") == 0
    await server.http.delete(f"/v1/session/{session}")
    samples = await scrape(server)
    assert value(samples, "sessions_open") == value(samples, "queue_length") == 0
    assert value(samples, "running_calls", engine="null") == 0
    cancelled = {"model": "null", "state": "cancelled", "criterion": "latency"}
    assert value(samples, "calls_total", engine="null", **cancelled) == 2
    assert value(samples, "calls_total", engine="none", **cancelled) == 1


async def test_requests_by_route_and_status(serve: Serve) -> None:
    """The label is the route's template, not the path, so an id never becomes a label."""
    server = await serve()
    session = await server.session()
    await server.graph(session)
    await server.graph("nope")
    await server.http.get("/no/such/route")
    await server.http.request("BREW", "/v1/models")
    samples = await scrape(server)

    def requests(method: str, route: str, status: int) -> float | None:
        return value(samples, "http_requests_total", method=method, route=route, status=str(status))

    assert requests("POST", "/v1/session", 200) == 1
    assert requests("GET", "/v1/session/{session_id}/graph", 200) == 1
    assert requests("GET", "/v1/session/{session_id}/graph", 404) == 1
    assert requests("GET", "none", 404) == 1
    assert requests("other", "/v1/models", 405) == 1


async def test_no_label_grows_with_use(serve: Serve) -> None:
    """A hundred sessions with their own names make as many series as one session."""
    server = await serve()

    async def use(number: int) -> None:
        session = await server.session()
        await server.submit(session, call(f"name{number}", f"{number}{{{{output:x}}}}", x="x"))
        await server.get(session, "x")
        await server.http.delete(f"/v1/session/{session}")

    await use(0)
    before = await scrape(server)
    await asyncio.gather(*map(use, range(1, 100)))
    after = await scrape(server)
    new = {name for name, labels in after.keys() - before.keys() if OF_METRICS not in labels}
    assert new == set()
    assert not re.search("[sc]_[0-9a-f]{12}", repr(after))


async def test_a_key_is_needed_where_there_are_keys(serve: Serve) -> None:
    """The numbers reveal what tenants do, so they need a key. Only /health needs none."""
    config = ServerConfig(keys={"secret": "default"})
    server = await serve(NullConfig(), config)
    assert (await server.http.get("/metrics")).status_code == 401
    assert (await server.http.get("/health/live")).status_code == 200
    allowed = await server.http.get("/metrics", headers={"Authorization": "Bearer secret"})
    assert allowed.status_code == 200


async def test_the_documented_metrics_are_there(serve: Serve) -> None:
    """The table in docs/serving.md lists exactly the metrics that exist."""
    shown = set(re.findall(r"`(weftline_\w+)`", SERVING.split("## Watching it")[1]))
    answer = await (await serve()).http.get("/metrics")
    families = text_string_to_metric_families(answer.text)
    served = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if not family.name.endswith("_created")
    }
    assert shown == served


async def test_two_applications_have_two_registries(serve: Serve) -> None:
    """Two servers in one process count separately."""
    first, second = await serve(), await serve()
    await first.session()
    assert value(await scrape(first), "sessions_open") == 1
    assert value(await scrape(second), "sessions_open") == 0


async def test_what_a_reader_waits_for_is_a_histogram(serve: Serve) -> None:
    """Two calls of five tokens: each has one first token, one mean between tokens, and one end."""
    server = await serve()
    session = await server.session()
    for name in ("x", "y"):
        text = f"one two three four {name}{{{{output:{name}}}}}"
        await server.submit(session, call(name, text, **{name: name}))
        await server.get(session, name)
    samples = await scrape(server)
    for metric in ("time_to_first_token", "time_per_output_token", "call"):
        assert value(samples, f"{metric}_seconds_count", model="null") == 2, metric
    waited = {"route": "/v1/get"}
    assert value(samples, "http_request_seconds_count", **waited) == 2
    [build] = [labels for name, labels in samples if name == "weftline_build_info"]
    assert {name for name, _ in build} == {"version", "python"}
    assert value(samples, "applications", state="waiting") == 0


async def test_tokens_and_costs_of_each_tenant(serve: Serve) -> None:
    """The second call reads the first one's prompt from the cache, which saves its price."""
    price = {"null": Price(prompt=2_000_000.0, cached=500_000.0, output=3_000_000.0)}
    config = ServerConfig(keys={"k": "ada"}, price=price)
    server = await serve(NullConfig(), config, {"Authorization": "Bearer k"})
    session = await server.session()
    costs = []
    for _ in range(2):
        body = {"prompt": "one two three four five", "max_tokens": 1, "session_id": session}
        usage = (await server.http.post("/v1/completions", json=body)).json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert usage["cost"] == (5 - cached) * 2 + cached * 0.5 + 3
        assert usage["saved"] == cached * 1.5
        costs.append(usage)
    samples = await scrape(server)
    cost = value(samples, "tenant_cost_total", tenant="ada", model="null")
    assert cost == sum(one["cost"] for one in costs) > 0
    assert value(samples, "tenant_tokens_total", tenant="ada", kind="output") == 2
    [row] = (await server.http.get("/v1/sessions")).json()["sessions"]
    assert row["cost"] == cost and row["saved"] == sum(one["saved"] for one in costs)
    one = (await server.graph(session))["calls"][0]["call_id"]
    shown = (await server.http.get(f"/v1/session/{session}/call/{one}")).json()
    assert shown["cost"] == costs[0]["cost"]


async def test_a_server_without_prices_shows_none(serve: Serve) -> None:
    """Zero would look like a price."""
    server = await serve()
    body = {"prompt": "one two", "max_tokens": 1}
    usage = (await server.http.post("/v1/completions", json=body)).json()["usage"]
    assert usage.keys().isdisjoint({"cost", "saved"})


def test_cached_tokens_save_the_difference_of_two_prices() -> None:
    """Ten prompt tokens, four of them cached, and three tokens of output."""
    prices = Prices({"m": Price(prompt=100.0, cached=25.0, output=400.0)})
    usage = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3, started=0.0, filled=1.0)
    found = prices.of_usages("m", [usage]).body()
    assert found == {"cost": 0.0019, "saved": 0.0003}
    assert prices.of_usages("other", [usage]).body() == {"cost": 0.0, "saved": 0.0}


def test_the_dashboard_reads_metrics_that_exist() -> None:
    """Every name in the queries of deploy/grafana.json is a metric of the table in the docs."""
    root = Path(__file__).resolve().parents[2]
    board = json.loads((root / "deploy" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 10
    named = {name for query in queries for name in re.findall(r"weftline_\w+", query)}
    shown = set(re.findall(r"`(weftline_\w+)`", SERVING.split("## Watching it")[1]))
    bare = {name if name in shown else re.sub("_(bucket|sum|count)$", "", name) for name in named}
    assert bare <= shown
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_a_duration_counts_in_its_bucket() -> None:
    """A bucket has what is at most its bound, and all buckets before it."""
    durations = Durations("wait", "Seconds of a wait", "kind")
    for seconds in (0.0005, 0.001, 0.002, 500.0):
        durations.observe(seconds, "a")
    buckets = {
        sample.labels["le"]: sample.value
        for sample in durations.family().samples
        if sample.name == "weftline_wait_seconds_bucket"
    }
    assert (buckets["0.001"], buckets["0.003"], buckets["100.0"], buckets["+Inf"]) == (2, 3, 3, 4)
    sums = {one.name: one.value for one in durations.family().samples if "le" not in one.labels}
    assert sums["weftline_wait_seconds_count"] == 4
    assert sums["weftline_wait_seconds_sum"] == 500.0035
