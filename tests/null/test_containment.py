"""An error inside the server ends the session that met it, and no other session."""

from __future__ import annotations

import logging

import pytest

from tests.null.asgi import Serve, call
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
