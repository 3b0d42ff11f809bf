"""Watches the variables that client steps read, and computes the steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from weftline.contract.errors import AlreadySet, ConnectionFailed, UnknownSession
from weftline.contract.protocol import SetVariable, SubmitBody
from weftline.sdk.client_steps import Computation, SentSteps, outcome_of, result_of
from weftline.sdk.connection import AsyncConnection
from weftline.sdk.control_verbs import SessionState
from weftline.sdk.own_functions import Compute
from weftline.sdk.watch_events import Submitted, event_of

log = logging.getLogger("weftline.steps")

MOST_SENDS = 3  # of one result, over broken connections


class StepTasks:
    """Sends submits with client steps, watches the variables that they read, and runs them."""

    def __init__(
        self, session: SessionState, connection: AsyncConnection, compute: Compute
    ) -> None:
        self._session = session
        self._connection = connection
        self._run = compute
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, submit: SubmitBody, waiting: SentSteps) -> None:
        """Send `submit`. Returns when the server has accepted it. Raises its error otherwise."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        body = replace(submit, watch=waiting.variables, wait=True)
        self._spawn(self._watch(body, waiting, accepted))
        await accepted

    async def close(self) -> None:
        """Cancel the watches and the steps that are running."""
        loop = asyncio.get_running_loop()
        # Tasks of another loop are those of the process from which this one was forked.
        own = [task for task in self._tasks if task.get_loop() is loop]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(
        self, submit: SubmitBody, waiting: SentSteps, accepted: asyncio.Future[None]
    ) -> None:
        try:
            async with aclosing(self._connection.events("/v1/submit", submit)) as events:
                async for event in events:
                    said = event_of(event)
                    if isinstance(said, Submitted):
                        accepted.set_result(None)
                    elif said is not None:
                        waiting.hear(said)
                    for computation, function in waiting.take_ready():
                        self._spawn(self._compute(computation, function))
        except Exception as error:
            if not accepted.done():
                accepted.set_exception(error)
                return
            log.warning("the client steps of session %s end: %r", self._session.id, error)
            for out in waiting.by_out:
                self._session.failures.setdefault(out, error)
                await self._tell(out, outcome_of(error))

    async def _compute(self, computation: Computation, function: Callable[[], Any]) -> None:
        out, made = computation.out, await self._run(computation.step.name, function)
        if made.error is not None:
            await self._fail(out, made.error)
            return
        try:
            body = result_of(computation, made.value)
            await send(self._session.id, self._connection, out, body)
        except Exception as error:
            await self._fail(out, error)

    async def _fail(self, out: str, error: BaseException) -> None:
        self._session.failures[out] = error
        await self._tell(out, outcome_of(error))

    async def _tell(self, out: str, body: SetVariable) -> None:
        try:
            await send(self._session.id, self._connection, out, body)
        except Exception:  # nobody awaits this task
            log.exception("the result of %s cannot be sent", out)


async def send(session: str, connection: AsyncConnection, out: str, body: SetVariable) -> None:
    """Send the result of a step. It is dropped if the variable is set or the session closed."""
    path = f"/v1/session/{session}/variable/{out}"
    for left in reversed(range(MOST_SENDS)):
        try:
            await connection.request("PUT", path, body)
        except ConnectionFailed as error:
            if not left:  # a get of the variable fails in the same way
                log.warning("the result of %s cannot be sent: %s", out, error)
        except (AlreadySet, UnknownSession) as error:
            log.debug("the result of %s comes too late: %s", out, error)
            return
        else:
            return
