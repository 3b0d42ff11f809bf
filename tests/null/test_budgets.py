"""Budgets of a session and limits of a tenant and of the queue: typed refusals, and nothing half
done.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, Server, call
from tests.waits import until
from weftline.errors import BudgetExceeded
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.config import ServerConfig
from weftline_server.runtime import lifecycle
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.session.budget import Budget, Spent, value_bytes


def limited(**limits: Any) -> ServerConfig:
    """Start a server whose sessions have this budget."""
    return ServerConfig(registry=RegistryConfig(budget=Budget(**limits)))


def refused(answer: httpx2.Response, budget: str) -> str:
    """Return the message of a response that names `budget` as used up."""
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (422, "BudgetExceeded", budget)
    return str(error["message"])


def echo(number: int, **more: Any) -> dict[str, Any]:
    return call(f"c{number}", f"w{number}{{{{output:x}}}}", x=f"x{number}", **more)


async def test_calls(serve: Serve) -> None:
    """The submit that exceeds the budget is refused whole. A submit that fits still runs."""
    server = await serve(NullConfig(), limited(calls=3))
    session = await server.session()
    assert (await server.submit(session, echo(1), echo(2))).status_code == 200
    message = refused(await server.submit(session, echo(3), echo(4)), "calls")
    assert message == (
        "the session's budget of 3 calls does not allow 4: split the application in two"
    )
    assert len((await server.graph(session))["calls"]) == 2
    assert (await server.submit(session, echo(3))).status_code == 200
    refused(await server.submit(session, echo(4)), "calls")


async def test_edges(serve: Serve) -> None:
    """An edge is an input that comes from a variable. Two inputs of one variable are one edge."""
    server = await serve(NullConfig(), limited(edges=2))
    session = await server.session()
    reads = call("b", "{{input:p}}{{input:q}}{{output:y}}", p="x1", q="x1", y="y")
    assert (await server.submit(session, echo(1), reads)).status_code == 200
    both = call("c", "{{input:p}}{{input:q}}{{output:z}}", p="x1", q="y", z="z")
    refused(await server.submit(session, both), "edges")


async def test_value_bytes(serve: Serve) -> None:
    """Constants, values that clients set and values of calls count, as bytes of UTF-8."""
    server = await serve(NullConfig(), limited(value_bytes=10))
    session = await server.session()
    path = f"/v1/session/{session}/variable"
    assert (await server.http.put(f"{path}/a", json={"value": "éé"})).status_code == 200
    refused(await server.http.put(f"{path}/b", json={"value": "1234567"}), "value_bytes")
    missing = await server.http.get(f"{path}/b")
    assert missing.status_code == 404, "a refused variable is not there"
    assert (await server.submit(session, call("c", "abc{{output:x}}", x="x"))).status_code == 200
    await server.get(session, "x")  # 4, 3 and another 3 bytes
    refused(await server.http.put(f"{path}/b", json={"value": "1"}), "value_bytes")


async def test_tokens(serve: Serve) -> None:
    """A call whose prompt and longest output exceed the budget fails when it would run. The error
    names it.
    """
    server = await serve(NullConfig(), limited(tokens=28))
    session = await server.session()
    out = {"in_out": "out", "sampling": {"max_tokens": 8}}
    first = call("first", "one{{output:x}}", x={**out, "semantic_var_id": "x"})
    second = call("second", "{{input:x}}{{output:y}}", x="x", y={**out, "semantic_var_id": "y"})
    third = call("third", "a b c d e{{output:z}}", z={**out, "semantic_var_id": "z"})
    await server.submit(session, first, second)
    assert (await server.get(session, "y")).json()["value"] == "one"
    await server.submit(session, third)
    answer = await server.get(session, "z")
    refused(answer, "tokens")
    assert answer.json()["error"]["call"] == "third"


async def test_seconds(serve: Serve) -> None:
    """A session past its age takes no calls, and the next sweep closes it."""
    server = await serve(NullConfig(), limited(seconds=0.01))
    session = await server.session()
    await asyncio.sleep(0.02)
    refused(await server.submit(session, echo(1)), "seconds")
    refused(
        await server.http.put(f"/v1/session/{session}/variable/a", json={"value": 1}), "seconds"
    )
    server.driver.sweep()
    assert (await server.get(session, "x")).json()["error"]["type"] == "UnknownSession"


async def _full(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "Overloaded")
    assert answer.headers["retry-after"] == "1"


async def test_sessions_of_a_tenant(serve: Serve) -> None:
    """Sessions of other tenants are not counted. A closed session makes room."""
    config = ServerConfig(keys={"ka": "a", "kb": "b"}, registry=RegistryConfig(max_sessions=2))
    server = await serve(NullConfig(), config)

    async def opened(key: str) -> httpx2.Response:
        return await server.http.post("/v1/session", headers={"Authorization": f"Bearer {key}"})

    first = (await opened("ka")).json()["session_id"]
    assert (await opened("ka")).status_code == 200
    await _full(await opened("ka"))
    assert (await opened("kb")).status_code == 200
    await server.http.delete(f"/v1/session/{first}", headers={"Authorization": "Bearer ka"})
    assert (await opened("ka")).status_code == 200


async def _fill(server: Server) -> str:
    """Occupy the engine's only place with one call and queue two more."""
    session = await server.session()
    await server.submit(session, echo(1), echo(2), echo(3))
    for _ in range(10):  # The calls are on their way when the submit's response arrives.
        await asyncio.sleep(0)
    return session


async def test_a_full_queue(serve: Serve) -> None:
    """While the queue is full, submits and completions are refused and leave nothing behind."""
    engine = NullConfig(max_running=1, latency=LatencyProfile(step_s=60))
    server = await serve(engine, ServerConfig(registry=RegistryConfig(max_queued=2)))
    session = await _fill(server)
    await _full(await server.submit(session, echo(4)))
    await _full(await server.http.post("/v1/submit", json={"calls": [echo(5)]}))
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    await _full(await server.http.post("/v1/chat/completions", json=chat))
    assert len((await server.graph(session))["calls"]) == 3
    assert server.service.engines.status().sessions == 1
    await server.http.delete(f"/v1/session/{session}")
    other = await server.session()
    assert (await server.submit(other, echo(4))).status_code == 200


def test_a_refused_request_uses_no_budget() -> None:
    """After a refusal, a request that fits is still accepted."""
    spent = Spent(Budget(value_bytes=4, tokens=4))
    with pytest.raises(BudgetExceeded):
        spent.take_value("12345", 0.0)
    spent.take_value("1234", 0.0)
    with pytest.raises(BudgetExceeded):
        spent.take_tokens(5)
    spent.take_tokens(4)
    assert (spent.value_bytes, spent.tokens) == (4, 4)


@pytest.mark.parametrize(
    ("value", "size"), [("ab", 2), ("é", 2), ("\ud800", 3), ([1, "é"], 9), ({"a": None}, 11)]
)
def test_bytes_of_a_value(value: Any, size: int) -> None:
    """Text counts as UTF-8, any other value as its JSON."""
    assert value_bytes(value) == size


async def test_an_ordinary_large_application_fits(serve: Serve) -> None:
    """A submit of 2,000 chained calls passes every default limit."""
    server = await serve()
    session = await server.session()
    calls = [call("c0", "start{{output:x}}", x="x0")]
    calls += [
        call(f"c{i}", "{{input:x}}{{output:y}}", x=f"x{i - 1}", y=f"x{i}") for i in range(1, 2000)
    ]
    assert (await server.submit(session, *calls)).status_code == 200
    assert (await server.get(session, "x1999")).json()["value"] == "start"


async def emptied(server: Server) -> None:
    """Wait until no session is left, for less than the longest time between two looks, 30 s."""
    await until(lambda: not server.service.engines.status().sessions, within_s=25)


async def test_an_idle_session_is_closed_a_tenth_of_its_time_late(serve: Serve) -> None:
    """Sessions may be idle for 0.5 s. The server looks each 0.2 s, and not each 30 s."""
    server = await serve(NullConfig(), ServerConfig(registry=RegistryConfig(idle_s=0.5)))
    began = time.monotonic()
    await server.session()
    await emptied(server)
    assert time.monotonic() - began > 0.5


async def test_a_server_closes_idle_and_old_sessions(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes a session by itself when it is idle for too long or too old."""
    monkeypatch.setattr(lifecycle, "SWEEP_S", 0.001)
    for limits in (RegistryConfig(idle_s=0.0), RegistryConfig(budget=Budget(seconds=0.0))):
        server = await serve(NullConfig(), ServerConfig(registry=limits))
        session = await server.session()
        # A request that named the session would keep it alive.
        await emptied(server)
        assert (await server.get(session, "x")).json()["error"]["type"] == "UnknownSession"
