"""Tenants share the server: none waits behind another's load, and none sees anything of another."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, call
from tests.waits import until
from weftline_engine.api import Hints
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.schedule.memory.admission import ModelPool, admit
from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.habits import Habits
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued
from weftline_server.schedule.placement.shares import Served

KEYS = {"key a": "a", "key b": "b"}
A, B = ({"Authorization": f"Bearer key {name}"} for name in "ab")
LOAD = EngineLoad(name="e", model="m", max_running=4)


def item(id: str, tenant: str, **hints: Any) -> Queued:
    return Queued(
        id=id,
        model="m",
        kind="generate",
        queued=0.0,
        tokens=10,
        hints=Hints(**hints),
        tenant=tenant,
    )


@pytest.mark.parametrize("policy", ["app", "request"])
def test_tenants_take_turns_whatever_their_priority(policy: str) -> None:
    """A has a hundred calls of the highest priority and the least work; B has two."""
    queue = [item(f"a{i}", "a", priority=-100, turn=-1000.0) for i in range(100)]
    queue += [item(f"b{i}", "b", turn=80.0) for i in range(2)]
    served = Served()
    order: list[str] = []
    while queue:
        placed = place(queue, [LOAD], policy, 0.0, served.begin(one.tenant for one in queue))
        for one in placed:
            served.got(one.id[0], 10)
            order.append(one.id)
        queue = [one for one in queue if one.id not in order]
    assert order[:4] == ["a0", "b0", "a1", "b1"] and order[4:] == [f"a{i}" for i in range(2, 100)]


def test_a_tenant_saves_up_no_turns() -> None:
    """B comes after A has been served alone for long, and again after a pause: it gets its half
    from then on and no more.
    """
    served = Served()
    served.begin(["a"])
    served.got("a", 10_000)
    assert served.begin(["a", "b"]) == {"a": 10_000, "b": 10_000}
    served.got("b", 500)
    assert served.begin(["a"])["a"] == 10_000
    served.got("a", 5_000)
    assert served.begin(["a", "b"]) == {"a": 15_000, "b": 15_000}


def test_applications_are_admitted_in_turn() -> None:
    """The cache holds three applications. A's five came first, and B gets one of the places."""

    def one(id: str, tenant: str, at: float) -> Application:
        return Application(
            id, "m", True, at, at, Habits(size=300), first=300, size=300, salt=tenant
        )

    waiting = [one(f"a{i}", "a", i) for i in range(5)] + [one("b0", "b", 9.0)]
    entered = admit(waiting, [], ModelPool(tokens=1000), 10.0).enter
    assert [application.id for application in entered] == ["a0", "b0", "a1"]


async def test_a_chat_does_not_wait_behind_another_tenants_loops(serve: Serve) -> None:
    """B's chat waited 49 s behind 200 short calls of A's, 36 s behind A's priority of -100."""
    slow = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=0.005), max_running=4)
    server = await serve(slow, ServerConfig(keys=KEYS))
    ended: list[str] = []

    async def chat(who: dict[str, str], tokens: int, **more: Any) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, **more}
        answer = await server.http.post("/v1/chat/completions", json=body, headers=who, timeout=60)
        assert answer.status_code == 200
        ended.append("a" if who is A else "b")

    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(chat(A, 4, priority=-100))
        await until(lambda: ended)
        before = len(ended)
        group.create_task(chat(B, 20))
    assert ended.index("b") - before < 60


async def test_limits_are_each_tenants_own(serve: Serve) -> None:
    """A fills its queue, its requests and its memory, and B works."""
    hung = NullConfig(latency=LatencyProfile(step_s=60.0), max_running=1)
    registry = RegistryConfig(max_queued_of_tenant=3, max_bytes=5000)
    config = ServerConfig(keys=KEYS, registry=registry)
    server = await serve(hung, config)

    async def submit(who: dict[str, str], text: str, **more: Any) -> httpx2.Response:
        body = {"calls": [call("c", text + "{{output:o}}", o="o")], "detach": True, **more}
        return await server.http.post("/v1/submit", json=body, headers=who)

    for _ in range(4):  # one runs, and three wait
        assert (await submit(A, "x")).status_code == 200
    await until(lambda: server.service.engines.status().queued == 3)
    full = await submit(A, "x")
    assert full.status_code == 429 and full.headers["retry-after"] == "1"
    assert full.json()["error"]["message"] == (
        "3 calls of yours wait for an engine already: try again later"
    )
    assert (await submit(B, "x" * 4999)).status_code == 200
    session = (await server.http.post("/v1/session", headers=B)).json()["session_id"]
    path = f"/v1/session/{session}/variable/"
    for name, status in (("v", 200), ("w", 200), ("x", 429)):
        answer = await server.http.put(path + name, json={"value": "y" * 3000}, headers=B)
        assert answer.status_code == status, answer.text


async def test_requests_under_way_are_counted_by_tenant(serve: Serve) -> None:
    """Two of A's requests wait for values; the third is refused, and B's is not."""
    config = ServerConfig(keys=KEYS, max_requests=2)
    server = await serve(NullConfig(), config)
    session = (await server.http.post("/v1/session", headers=A)).json()["session_id"]
    wait = {"session_id": session, "semantic_var_id": "v", "wait": True}
    gets = [
        asyncio.create_task(server.http.post("/v1/get", json=wait, headers=A)) for _ in range(2)
    ]
    await until(lambda: sum(map(len, server.driver.readers._signals.values())) == 2)
    refused = await server.http.post("/v1/session", headers=A)
    assert refused.status_code == 429 and refused.json()["error"]["type"] == "Overloaded"
    assert (await server.http.post("/v1/session", headers=B)).status_code == 200
    for get in gets:
        get.cancel()
    await asyncio.gather(*gets, return_exceptions=True)


async def test_metrics_and_readiness_show_nothing_of_others(serve: Serve) -> None:
    """Metrics count everybody's calls: only the tenant that the operator names reads them."""
    server = await serve(NullConfig(), ServerConfig(keys=KEYS, metrics_tenant="b"))
    assert (await server.http.get("/metrics", headers=A)).status_code == 403
    assert (await server.http.get("/metrics", headers=B)).status_code == 200
    slot = server.driver.dispatcher.members[0]
    slot.last_error = "the prompt of tenant a was 'secret'"
    slot.state = type(slot.state).SUSPENDED
    ready = await server.http.get("/health/ready")
    assert ready.status_code == 503 and set(ready.json()) == {"status", "engines"}
    slot.state = type(slot.state).READY


async def test_a_tenants_probe_finds_the_same_as_for_unknown_ids(serve: Serve) -> None:
    """Every route with a session's id: B gets the same bytes for A's session as for none."""
    server = await serve(NullConfig(), ServerConfig(keys=KEYS))
    body = {"calls": [call("c", "x{{output:o}}", o="o")]}
    made = (await server.http.post("/v1/submit", json=body, headers=A)).json()
    real, task = made["session_id"], made["calls"][0]["call_id"]
    unknown = real[:-8] + "00000000"

    async def probe(id: str) -> list[tuple[int, str]]:
        found = []
        for method, path, sent in (
            ("GET", f"/v1/session/{id}/graph", None),
            ("GET", f"/v1/session/{id}/events", None),
            ("GET", f"/v1/session/{id}/variable/o", None),
            ("PUT", f"/v1/session/{id}/variable/n", {"value": 1}),
            ("DELETE", f"/v1/session/{id}/variable/o", None),
            ("DELETE", f"/v1/session/{id}/call/{task}", None),
            ("DELETE", f"/v1/session/{id}", None),
            ("POST", "/v1/get", {"session_id": id, "semantic_var_id": "o"}),
            ("POST", "/v1/submit", {"session_id": id, **body}),
            ("POST", "/v1/submit", {"session_id": id, "get": ["o"]}),
            (
                "POST",
                "/v1/chat/completions",
                {"session_id": id, "messages": [{"role": "user", "content": "x"}]},
            ),
        ):
            answer = await server.http.request(method, path, json=sent, headers=B)
            found.append((answer.status_code, answer.text.replace(id, "ID")))
        return found

    theirs = await probe(real)
    assert theirs == await probe(unknown) and {status for status, _ in theirs} == {404}
    assert (await server.http.get(f"/v1/session/{real}/graph", headers=A)).status_code == 200
