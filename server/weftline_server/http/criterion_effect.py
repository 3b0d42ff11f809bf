"""What the criterion of a get has changed: it reaches calls that wait, are queued or run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from weftline.contract.protocol import Criterion
from weftline_server.runtime.service import Service
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState


class Reach(StrEnum):
    """How far the call that writes the variable was when the criterion came."""

    PLANNED = "planned"  # nothing of it has begun
    QUEUED = "queued"  # its place among what waits has changed
    RUNNING = "running"  # its engine has taken the change
    REFUSED = "refused"  # it runs on an engine that takes no change
    ENDED = "ended"  # there was nothing to change


_REACH = {
    RunState.WAITING: Reach.PLANNED,
    RunState.QUEUED: Reach.QUEUED,
    RunState.RUNNING: Reach.RUNNING,
}


@dataclass(frozen=True, slots=True)
class CriterionEffect:
    """A criterion that a get has asked for, and the call that it reached."""

    primitive: str | None  # None where no call writes the variable
    reach: Reach

    @classmethod
    def of(cls, service: Service, session: ServerSession, variable: str) -> CriterionEffect:
        """The effect of a criterion that comes now."""
        producer = session.graph.producer.get(variable)
        if producer is None:
            return cls(None, Reach.PLANNED)
        run = session.primitives[producer]
        reach = _REACH.get(run.state, Reach.ENDED)
        engine = "" if run.step is None else run.step.engine or ""
        if reach is Reach.RUNNING and not service.engines.takes_updates(engine):
            reach = Reach.REFUSED
        return cls(producer, reach)

    def told(self, session: ServerSession) -> dict[str, str]:
        """The part of the answer: the criterion that holds, the stricter of all, and the reach."""
        holds = session.plan.objective.get(self.primitive or "", Criterion.LATENCY)
        return {"holds": holds, "reached": self.reach}
