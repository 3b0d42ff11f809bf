"""Primitives that no engine computes: the server does, or a client within its lease.

The server computes a step at once, or after the time that its kind waits. A step whose client has
left fails after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline.contract.errors import ClientGone
from weftline_engine import api
from weftline_server.graph.primitive import Primitive, PrimitiveId, Where
from weftline_server.lowering.kinds import wait_of
from weftline_server.lowering.kinds.client import lease_of
from weftline_server.schedule.session_protocol import Outcome, Sent
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession


class EnginelessRunner:
    """Starts these primitives. `hear` takes outcomes as an engine's, `apply` tells a session, and
    `wake` tells the client that waits for a variable.
    """

    def __init__(
        self,
        hear: Callable[[ServerSession, Primitive, Outcome], None],
        apply: Callable[[ServerSession, ev.SessionEvent], None],
        wake: Callable[[ServerSession, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._hear = hear
        self._apply = apply
        self._wake = wake
        self._now = clock
        self._timers: dict[PrimitiveId, asyncio.TimerHandle] = {}  # of steps that wait

    def start(self, session: ServerSession, primitive: Primitive) -> None:
        """Compute the primitive, now or after its wait, or wait for its client.

        A wait begins anew on a server that resumes the session. A client's step fails once none of
        its requests has been open for the step's lease.
        """
        now, where = self._now(), primitive.traits.where
        self._hear(session, primitive, Sent(where.value, now, ""))
        if where is Where.CLIENT:
            lease_s = lease_of(primitive)
            self._wait(session, primitive.id, lease_s, lease_s)
            for variable in primitive.writes:
                self._wake(session, variable)
        elif wait_s := wait_of(primitive):
            timer = asyncio.get_running_loop().call_later(wait_s, self._finish, session, primitive)
            self._timers[PrimitiveId(session.id, primitive.id)] = timer
        else:
            self._finish(session, primitive)

    def end(self, id: PrimitiveId) -> None:
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()

    def _finish(self, session: ServerSession, primitive: Primitive) -> None:
        self._timers.pop(PrimitiveId(session.id, primitive.id), None)
        self._hear(session, primitive, _done(f"{session.id}/{primitive.id}", self._now()))

    def _wait(self, session: ServerSession, primitive: str, lease_s: float, left_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(left_s, self._check, session, primitive, lease_s)
        self._timers[PrimitiveId(session.id, primitive)] = timer

    def _check(self, session: ServerSession, primitive: str, lease_s: float) -> None:
        """Fail the step, or wait for the rest of the lease if its client was here meanwhile."""
        run, now = session.primitives[primitive], self._now()
        began = now if run.step is None else run.step.queued
        since = session.alone_since
        left_s = lease_s if since is None else max(since, began) + lease_s - now
        if left_s > 0:
            self._wait(session, primitive, lease_s, left_s)
            return
        del self._timers[PrimitiveId(session.id, primitive)]
        error = ClientGone(
            f"step {run.task.task.name!r} waited {lease_s:g} s for its client, which had no "
            "request open: keep one open while you compute it, or give a longer lease_s"
        )
        self._apply(session, ev.PrimitiveFailed(now=now, primitive=primitive, error=error))


def _done(op: str, now: float) -> api.Finished:
    """The end of a primitive that needs no engine."""
    usage = api.Usage(prompt_tokens=0, cached_tokens=0, output_tokens=0, started=now, filled=now)
    reason = api.FinishReason.STOP
    return api.Finished(op=op, attempt=0, sequence=0, time=now, reason=reason, usage=usage)
