"""An error inside the server ends the session that met it, and no other session."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import cast

import pytest

from tests.null.asgi import Serve, call
from weftline_server.runtime.containment import Containment
from weftline_server.schedule.engines.member import Work
from weftline_server.session.session import ServerSession
from weftline_server.session.task import TaskRun


class Broken:
    """An observer that fails at every call and every session."""

    def task_ended(self, session: ServerSession, run: TaskRun) -> None:
        raise RuntimeError("a bug of ours")

    def session_closed(self, session: ServerSession) -> None:
        raise RuntimeError("another bug of ours")


CALLS = (
    call("a", "1{{output:x}}", x="x"),
    call("b", "{{input:x}}{{output:z}}", x="x", z="z"),
)


async def test_an_error_in_a_session_leaves_the_others_alone(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sessions run on one engine, which goes on. Readers of the broken session get
    an error.
    """
    server = await serve()
    bad, good = await server.session(), await server.session()
    dispatcher = server.driver.dispatcher
    enqueue = dispatcher.enqueue

    def broken(work: Work) -> None:
        if work.primitive.session == bad:
            raise RuntimeError("a bug of ours")
        enqueue(work)

    monkeypatch.setattr(dispatcher, "enqueue", broken)
    with caplog.at_level(logging.ERROR, "weftline.driver"):
        await server.submit(bad, *CALLS)
        answer = await server.get(bad, "z")
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "Cancelled")
    assert "its log says which" in answer.json()["error"]["message"]
    assert "a bug of ours" in caplog.text
    assert (await server.get(bad, "x")).status_code == 404
    await server.submit(good, call("a", "1{{output:x}}", x="x"))
    assert (await server.get(good, "x")).json()["value"] == "1"


async def test_an_error_of_an_observer_is_in_the_log_alone(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """What counts, logs or compares calls fails at each of them. The calls have their values."""
    server = await serve()
    server.service.lifecycle.observe(Broken())
    with caplog.at_level(logging.ERROR, "weftline.driver"):
        session = await server.session()
        await server.submit(session, *CALLS)
        assert (await server.get(session, "z")).json()["value"] == "1"
        await server.http.delete(f"/v1/session/{session}")
    assert caplog.text.count("RuntimeError: a bug of ours") == 2
    assert caplog.text.count("RuntimeError: another bug of ours") == 1


async def test_work_that_never_began_is_closed() -> None:
    """A loop that ends cancels tasks that have not made a step. Python warns of a coroutine that
    nobody awaited, and the warning would fail whatever test runs when it is collected.
    """

    async def work() -> None:
        raise AssertionError("cancelled before it began")

    contained = Containment(lambda session, reason: None)
    begun = work()
    contained.spawn(cast(ServerSession, None), begun)
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await contained.settle()
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


async def test_settling_waits_for_tasks_that_tasks_start() -> None:
    """A server that stops leaves nothing behind that still runs."""
    contained = Containment(lambda session, reason: None)
    ended: list[str] = []

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def first() -> None:
        contained.spawn(cast(ServerSession, None), second())
        ended.append("first")

    contained.spawn(cast(ServerSession, None), first())
    await contained.settle()
    assert ended == ["first", "second"]
