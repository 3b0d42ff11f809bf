"""An attempt to run a primitive: what makes its op and its value, and what engines are advised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine

from weftline_engine import api
from weftline_engine.api.record import short_record
from weftline_server.graph.primitive import Effects, Primitive, PrimitiveId
from weftline_server.lowering.result_values import Transformed
from weftline_server.prompt.prompter import Payload
from weftline_server.runtime.workers import Workers
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.turns import Pace, turn
from weftline_server.session.origin import handed_on
from weftline_server.session.session import ServerSession


@short_record
class Attempt:
    """One attempt to run a primitive. An attempt that `is_open` has only the beginning of its
    prompt."""

    number: int = 0
    is_open: bool = False


class Runner(ABC):
    """The server's side of some kinds of primitives, whose inputs are all ready when it is asked.

    The defaults are those of a kind without a prompt: JSON values go out, and one comes back.
    """

    def __init__(self, salt: Callable[[str], str], workers: Workers, pace: Pace) -> None:
        self._salt = salt
        self._workers = workers
        self._pace = pace

    def prepare(
        self, session: ServerSession, primitive: Primitive
    ) -> Payload | Coroutine[object, object, Payload]:
        """The payload from the session's values, or a coroutine that makes it elsewhere because
        that may take long. Both raise a WeftlineError for a bad value."""
        return Payload(None, None)

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        """The most tokens that a run of the payload takes from the session's budget."""
        return primitive.work

    def work(
        self,
        session: ServerSession,
        primitive: Primitive,
        payload: Payload,
        attempt: Attempt,
        now: float,
    ) -> Work:
        """The op for an engine, with the facts that the scheduler needs about the op."""
        id = PrimitiveId(session.id, primitive.id)
        op = api.Op(
            id=str(id),
            attempt=attempt.number,
            kind=primitive.kind,
            context=str(id),
            inputs=payload.inputs,
            salt=self._salt(session.tenant),
            hints=hints(session, primitive, self._pace),
        )
        return Work(
            id,
            primitive.resource,
            op,
            queued_at(session, primitive, attempt, now),
            primitive.work,
            stays=session.stays,
            once=primitive.effects is Effects.ONCE,
        )

    @abstractmethod
    def result(
        self, session: ServerSession, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        """The value, or a coroutine that makes it elsewhere because that may take long."""

    def failed(self, primitive: Primitive, failed: api.Failed) -> api.Finished | None:
        """The end of a primitive whose failure is a value; None where it is a failure."""
        return None


def hints(session: ServerSession, primitive: Primitive, pace: Pace) -> api.Hints:
    """Findings of the passes about a primitive, as advice for the policy and the engine."""
    depth, objective, group = session.plan.advice(primitive.id)
    reads_tokens = map(session.watch.reads_tokens, primitive.writes)
    burst, priority = session.execution.burst, session.graph.tasks[primitive.task].priority
    if burst.own_s is None:  # the pace changes, and the turn of an application must not
        burst.own_s = pace.seconds(primitive.resource, burst.work - burst.output, burst.output)
    return api.Hints(
        application=session.id,
        group=group,
        depth=depth,
        arrival=session.opened,
        work_left=session.execution.work_left,
        turn=turn(burst.since, burst.own_s, objective, priority),
        criterion=objective,
        priority=priority,
        traceparent=handed_on(session.tasks[primitive.task].origin, session.id, primitive.task),
        unread=not any(reads_tokens),
    )


def queued_at(session: ServerSession, primitive: Primitive, attempt: Attempt, now: float) -> float:
    """When the primitive was queued, in seconds; an early fill is queued now."""
    step = session.primitives[primitive.id].step
    return now if step is None or attempt.is_open else step.queued
