"""What policy and engine are told about a call, and what they are told anew while it waits."""

from __future__ import annotations

from collections.abc import Iterator

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.runtime.containment import Containment
from weftline_server.session.session import Session


def hints(session: Session, call: str) -> api.Hints:
    """What the passes found out about `call`, as advice for policy and engine."""
    plan = session.plan
    return api.Hints(
        application=session.id,
        group=plan.group.get(call, ""),
        depth=plan.depth.get(call, 0),
        arrival=session.opened,
        work_left=session.work_left,
        criterion=plan.objective.get(call, "latency"),
        priority=session.calls[call].node.call.priority,
    )


class Replanned:
    """Sessions whose plan is due, until the dispatcher asks before it places."""

    def __init__(self, contained: Containment) -> None:
        self._contained = contained
        self._due: dict[str, Session] = {}

    def note(self, session: Session) -> None:
        """Something has happened in `session`."""
        if session.closed:
            self._due.pop(session.id, None)
        elif session.due:
            self._due[session.id] = session

    def take(self) -> Iterator[tuple[PrimitiveId, api.Hints]]:
        """The primitives that may wait for an engine with other hints than are true now."""
        while self._due:
            _, session = self._due.popitem()
            with self._contained.inside(session):
                for call in session.replanned():
                    id = PrimitiveId(session.id, call, session.calls[call].index)
                    yield id, hints(session, call)
