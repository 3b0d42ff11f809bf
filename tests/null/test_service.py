"""The service by itself: its status and its drain."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.null.asgi import Serve, call
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.state import state_of
from weftline_server.schedule.engines.member import EngineState


async def test_the_status_counts_sessions_primitives_and_tokens(serve: Serve) -> None:
    """One place on the engine and two calls: one runs, the other waits."""
    slow = NullConfig(max_running=1, latency=LatencyProfile(step_s=60))
    server = await serve(slow)
    calls = [call(name, f"{name} two{{{{output:o}}}}", o=name) for name in ("a", "b")]
    session = await server.session()
    await server.submit(session, *calls)
    while not server.service.engines.statuses[0].running:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)
    status = server.service.engines.status()
    (engine,) = status.engines
    assert (status.sessions, status.queued, engine.running) == (1, 1, 1)
    assert engine.tokens > 2 and engine.state is EngineState.READY and engine.model == "null"
    assert status.healthy and not status.draining


def test_a_server_that_has_not_started_has_a_status() -> None:
    """A cluster asks for it before the engines start. Nothing is held and nobody waits."""
    service = state_of(
        create_app(ServerConfig(), {"null": lambda: NullEngine(NullConfig())})
    ).service
    status = service.engines.status()
    assert (status.sessions, status.queued, status.admitted, status.waiting) == (0, 0, 0, 0)


async def test_a_drain_lets_calls_end(serve: Serve) -> None:
    """The call ends before its session is closed; new work is refused meanwhile."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.01)))
    session = await server.session()
    await server.submit(session, call("echo", "one two{{output:x}}", x="x"))
    found = server.service.registry.find("local", session)
    await server.service.lifecycle.drain(within_s=60)
    assert found.variable("x").text == "one two"
    assert (
        server.service.engines.status().draining and server.service.engines.status().sessions == 0
    )
    refused = await server.http.post("/v1/session")
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "EngineUnavailable")


async def test_a_drain_cancels_calls_that_take_too_long(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells the operator about it."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=60)))
    session = await server.session()
    await server.submit(session, call("slow", "one two{{output:x}}", x="x"))
    found = server.service.registry.find("local", session)
    with caplog.at_level(logging.WARNING, "weftline.service"):
        await server.service.lifecycle.drain(within_s=0.05)
    assert [run.state.value for run in found.tasks.values()] == ["cancelled"]
    assert "calls still ran after 0.05 s and are cancelled" in caplog.text
