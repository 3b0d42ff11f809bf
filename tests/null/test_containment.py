"""An error inside the server ends the session that met it, and no other session."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import cast

import pytest

from tests.null.asgi import Serve, call
from weftline_server.runtime.containment import Containment
from weftline_server.session.session import Session
from weftline_server.session.task import TaskRun


class Broken:
    """A part of the server that fails for one session."""

    session = ""

    def task_ended(self, session: Session, run: TaskRun) -> None:
        if session.id == self.session:
            raise RuntimeError("a bug of ours")

    def session_closed(self, session: Session) -> None:
        """It fails in every session, which is closed all the same."""
        raise RuntimeError("another bug of ours")


async def test_an_error_in_a_session_leaves_the_others_alone(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sessions run on one engine, which goes on. Readers of the broken session get
    an error.
    """
    server = await serve()
    broken = Broken()
    server.service.observe(broken)
    bad, good = await server.session(), await server.session()
    broken.session = bad
    with caplog.at_level(logging.ERROR, "weftline.driver"):
        calls = (
            call("a", "1{{output:x}}", x="x"),
            call("b", "{{input:x}}{{output:z}}", x="x", z="z"),
        )
        await server.submit(bad, *calls)
        answer = await server.get(bad, "z")
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "Cancelled")
    assert "its log says which" in answer.json()["error"]["message"]
    assert "a bug of ours" in caplog.text
    assert (await server.get(bad, "x")).status_code == 404
    await server.submit(good, call("a", "1{{output:x}}", x="x"))
    assert (await server.get(good, "x")).json()["value"] == "1"


async def test_work_that_never_began_is_closed() -> None:
    """A loop that ends cancels tasks that have not made a step. Python warns of a coroutine that
    nobody awaited, and the warning would fail whatever test runs when it is collected.
    """

    async def work() -> None:
        raise AssertionError("cancelled before it began")

    contained = Containment(lambda session, reason: None)
    begun = work()
    contained.spawn(cast(Session, None), begun)
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
        contained.spawn(cast(Session, None), second())
        ended.append("first")

    contained.spawn(cast(Session, None), first())
    await contained.settle()
    assert ended == ["first", "second"]
