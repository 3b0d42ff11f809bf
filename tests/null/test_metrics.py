"""GET /metrics: the numbers are right, and clients cannot create labels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.null.asgi import Serve, Server, call
from weftline_engine.null import LatencyProfile, NullConfig
from weftline_server.config import ServerConfig

SERVING = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text()

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
    for _ in range(10):  # the calls are on their way when the submit is answered
        await asyncio.sleep(0)
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
    new = {name for name, _ in after.keys() - before.keys()}
    assert new <= {"weftline_http_requests_total", "weftline_http_requests_created"}  # of /metrics
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
