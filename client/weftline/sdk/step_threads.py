"""Computes the client steps of a synchronous session, in threads.

By hand beside `weftline.sdk.step_tasks`: threads cannot be cancelled, and at most 32 compute at a
time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Semaphore, Thread
from typing import Any, Protocol

from weftline.contract.errors import AlreadySet, ConnectionFailed, UnknownSession
from weftline.contract.protocol import SetVariable, Submit
from weftline.sdk.client_steps import Computation, SentSteps, outcome_of, result_of
from weftline.sdk.connection import Connection
from weftline.sdk.events import Submitted, event_of
from weftline.sdk.session import SessionBase

log = logging.getLogger("weftline.steps")

MOST_AT_ONCE = 32  # functions that run at the same time; more would compete for Python's lock
MOST_SENDS = 3  # of one result, over broken connections


class Named(Protocol):
    """A session that is the owner of a result: its id, and whether it has been closed."""

    id: str
    closed: bool


class StepThreads:
    """Sends submits with client steps. A thread for each watches the variables that they read."""

    def __init__(self, session: SessionBase[Any], connection: Connection) -> None:
        self._session = session
        self._connection = connection

    def start(self, submit: Submit, waiting: SentSteps) -> None:
        """Send `submit`. Returns when the server has accepted it. Raises its error otherwise."""
        accepted: Future[None] = Future()
        body = replace(submit, watch=waiting.variables, wait=True)
        watch = partial(self._watch, body, waiting, accepted)
        Thread(target=watch, name="weftline-steps", daemon=True).start()
        accepted.result()

    def _watch(self, submit: Submit, waiting: SentSteps, accepted: Future[None]) -> None:
        places = Semaphore(MOST_AT_ONCE)
        try:
            with closing(self._connection.events("/v1/submit", submit)) as events:
                for event in events:
                    said = event_of(event)
                    if isinstance(said, Submitted):
                        accepted.set_result(None)
                    elif said is not None:
                        waiting.hear(said)
                    for computation, function in waiting.take_ready():
                        work = partial(self._compute, computation, function, places)
                        name = f"weftline-{computation.step.name}"
                        Thread(target=work, name=name, daemon=True).start()
        except Exception as error:
            if not accepted.done():
                accepted.set_exception(error)
                return
            if self._session.closed:
                log.debug("the watch of session %s ends: %s", self._session.id, error)
                return  # nobody waits for the steps, and the client may be closed as well
            log.warning("the client steps of session %s end: %r", self._session.id, error)
            for out in waiting.by_out:
                self._session.failures.setdefault(out, error)
                self._tell(out, outcome_of(error))

    def _compute(
        self, computation: Computation, function: Callable[[], Any], places: Semaphore
    ) -> None:
        try:
            with places:
                value = function()
                if inspect.iscoroutine(value):
                    value = asyncio.run(value)
            send(self._session, self._connection, computation.out, result_of(computation, value))
        except (Exception, SystemExit) as error:  # Python ignores a SystemExit that ends a thread
            self._session.failures[computation.out] = error
            self._tell(computation.out, outcome_of(error))

    def _tell(self, out: str, body: SetVariable) -> None:
        try:
            send(self._session, self._connection, out, body)
        except Exception:  # no caller waits for this thread
            log.exception("the result of %s cannot be sent", out)


def send(session: Named, connection: Connection, out: str, body: SetVariable) -> None:
    """Send the result of a step. It is dropped if the variable is set or the session closed."""
    path = f"/v1/session/{session.id}/variable/{out}"
    for left in reversed(range(MOST_SENDS)):
        try:
            connection.request("PUT", path, body)
        except ConnectionFailed as error:
            if not left:  # a get of the variable fails in the same way
                log.warning("the result of %s cannot be sent: %s", out, error)
        except (AlreadySet, UnknownSession) as error:
            log.debug("the result of %s comes too late: %s", out, error)
            return
        except RuntimeError as error:  # httpx2's error of a closed client
            if not session.closed:
                raise
            log.debug("the result of %s comes too late: %s", out, error)
            return
        else:
            return
