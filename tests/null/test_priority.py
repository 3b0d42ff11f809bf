"""The order of waiting calls: a client's priority, in both policies, without starvation."""

from __future__ import annotations

import asyncio

import pytest

from tests.null.asgi import Serve, running
from weftline_engine.api import PRIORITY_S, Hints
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.config import ServerConfig
from weftline_server.http.state import OPEN_TENANT
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued

ENGINE = EngineLoad(name="e", model="m", max_running=1)


def first(policy: str, now: float, *waiting: tuple[str, float, int]) -> str:
    """Return which of (id, queued, priority) starts on an engine with one place."""
    queue = [
        Queued(
            id=id,
            model="m",
            kind="generate",
            queued=queued,
            tokens=9,
            hints=Hints(turn=queued + PRIORITY_S * rank, priority=rank),
        )
        for id, queued, rank in waiting
    ]
    [placed] = place(queue, [ENGINE], policy, now)
    return placed.id


@pytest.mark.parametrize("policy", ["app", "request"])
def test_a_lower_priority_number_goes_first_until_waiting_outweighs_it(policy: str) -> None:
    """A priority step is worth ten seconds: three steps are outweighed by more than thirty seconds
    of waiting.
    """
    for low in (-2, 0, 97):
        waiting = ("late", 1.0, low), ("early", 0.0, low + 3)
        assert first(policy, 1.0, *waiting) == "late"
        old = ("late", 3 * PRIORITY_S + 1.0, low), ("early", 0.0, low + 3)
        assert first(policy, 3 * PRIORITY_S + 1.0, *old) == "early"


async def test_the_priority_of_a_request_reaches_the_queue(serve: Serve) -> None:
    """With one place, the last of three waiting requests is done first."""
    slow = NullConfig(max_running=1, latency=LatencyProfile(step_s=0.1))
    server = await serve(slow, ServerConfig(policy="request"))
    ended: list[int] = []

    async def ask(priority: int) -> None:
        body = {"prompt": "one two three", "priority": priority}
        answer = await server.http.post("/v1/completions", json=body)
        assert answer.status_code == 200
        ended.append(priority)

    tasks = [asyncio.create_task(ask(0))]
    dispatcher = server.driver.dispatcher
    while running(dispatcher)["null"][0] == 0:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)
    tasks += [asyncio.create_task(ask(priority)) for priority in (5, 1, -5)]
    await asyncio.gather(*tasks)
    assert ended == [0, -5, 1, 5]
    refused = await server.http.post("/v1/completions", json={"prompt": "x", "priority": 101})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")


async def test_the_priority_of_agent_hints_counts_the_other_way(serve: Serve) -> None:
    """A client of Dynamo sends higher numbers for what should go first."""
    server = await serve()
    for priority, more in ((5, {}), (9999, {}), (5, {"priority": 3})):
        hints = {"agent_hints": {"priority": priority, "osl": 9}}
        body = {"messages": [{"role": "user", "content": "x"}], "nvext": hints, **more}
        header = {"X-Session-ID": "s"}
        answer = await server.http.post("/v1/chat/completions", json=body, headers=header)
        assert answer.status_code == 200
    [session] = (await server.http.get("/v1/sessions")).json()["sessions"]
    found = server.service.registry.find(OPEN_TENANT, session["session_id"])
    assert [task.priority for task in found.graph.tasks.values()] == [-5, -100, 3]


async def test_a_completion_may_state_a_criterion(serve: Serve) -> None:
    """Both of OpenAI's routes accept a criterion. Without one a call is run for latency."""
    server = await serve(NullConfig(), ServerConfig())
    opened = await server.http.post("/v1/session", json={})
    named = {"session_id": opened.json()["session_id"]}
    await server.http.post(
        "/v1/completions", json={"prompt": "one", "criteria": "throughput", **named}
    )
    messages = [{"role": "user", "content": "two"}]
    for wanted in ({}, {"criteria": "ttft"}):
        body = {"messages": messages, **wanted, **named}
        await server.http.post("/v1/chat/completions", json=body)
    graph = await server.http.get(f"/v1/session/{named['session_id']}/graph")
    objectives = [call["objective"] for call in graph.json()["calls"]]
    assert objectives == ["throughput", "latency", "ttft"]
    wrong = {"prompt": "x", "criteria": "speed"}
    assert (await server.http.post("/v1/completions", json=wrong)).status_code == 400
