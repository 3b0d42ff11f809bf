"""Runs an agent for the synchronous client. Its tools run in threads.

By hand beside `weftline.sdk.agent_arun`: a thread cannot be cancelled, so a tool that takes too
long is left behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import closing
from threading import Lock, Thread, Timer
from typing import Any, Protocol

from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import SetVariable
from weftline.sdk.agent import ROUTE, Agent, AgentResult, DueCall, observation_of
from weftline.sdk.connection import Connection
from weftline.sdk.step_threads import Named, send

log = logging.getLogger("weftline.agent")


class AgentSession(Named, Protocol):
    """What a run asks of its session."""

    def flush(self) -> None:
        """Send the calls that were added before the run."""

    def cancel(self, variable: str) -> None:
        """Cancel what writes a variable."""


class AgentRun:
    """One run of an agent. Iterate over `stream` for its text, or call `get` for its result."""

    def __init__(self, session: AgentSession, connection: Connection, agent: Agent) -> None:
        self._session = session
        self._connection = connection
        self._agent = agent
        self._texts: Generator[str, None, None] | None = None
        self._lost: list[Exception] = []  # what hindered the sending of results

    def stream(self) -> Generator[str, None, None]:
        """The model's text in all its turns, in parts, as it is generated."""
        if self._texts is None:
            self._texts = self._read()
        return self._texts

    def get(self) -> AgentResult:
        """Wait for the end of the run, and return its result."""
        for _ in self.stream():
            pass
        return self._agent.result

    def _read(self) -> Generator[str, None, None]:
        self._session.flush()
        events = self._connection.events(ROUTE, self._agent.request)
        try:
            with closing(events):
                for event in events:
                    said = self._agent.hear(event.data)
                    if isinstance(said, str):
                        yield said
                    elif said is not None:
                        name = f"weftline-{said.tool.spec.function.name}"
                        Thread(target=self._compute, args=(said,), name=name, daemon=True).start()
        except WeftlineError as error:
            raise error from (self._lost[0] if self._lost else error.__cause__)

    def _compute(self, call: DueCall) -> None:
        timeout_s = call.tool.spec.timeout_s
        answer = _Answer(self._session, self._connection, call.variable, self._lost)
        late = SetVariable(value=call.timed_out)
        timer = Timer(timeout_s, answer.give, (late,))
        timer.daemon = True
        try:
            if call.tool.is_async:
                made = observation_of(asyncio.run(_within(call, timeout_s)))
            else:
                timer.start()  # a thread cannot be ended, so after this time its result is ignored
                made = observation_of(call.tool.function(**call.bound()))
        except TimeoutError:
            made = late
        except (Exception, SystemExit) as error:  # Python ignores a SystemExit that ends a thread
            made = call.failed(error)
        timer.cancel()
        answer.give(made)


async def _within(call: DueCall, timeout_s: float) -> Any:
    return await asyncio.wait_for(call.tool.function(**call.bound()), timeout_s)


class _Answer:
    """Sends one result for a call: the tool's, or that it took too long, whichever is first."""

    def __init__(
        self,
        session: AgentSession,
        connection: Connection,
        variable: str,
        lost: list[Exception],
    ) -> None:
        self._session = session
        self._connection = connection
        self._variable = variable
        self._lost = lost
        self._first = Lock()

    def give(self, body: SetVariable) -> None:
        if not self._first.acquire(blocking=False):
            return
        try:
            send(self._session, self._connection, self._variable, body)
        except Exception as error:  # no caller waits for this thread, and the server for the result
            log.exception("the result of a tool cannot be sent")
            self._lost.append(error)
            self._session.cancel(self._variable)
