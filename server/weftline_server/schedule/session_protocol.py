"""The one protocol between the scheduler and the sessions whose primitives it runs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from weftline_engine import api
from weftline_engine.api.record import short_record
from weftline_server.graph.engine_score import EngineScore
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.keeper import Outlook


@short_record
class Sent:
    """The primitive was sent to `engine`, on machine `node`, at `time` (seconds, monotonic).

    `why` has what placement weighed, for that engine first. `admitted` is when its application was
    admitted to the KV cache, if the primitive waited for that.
    """

    engine: str
    time: float
    node: str = ""
    why: tuple[EngineScore, ...] = ()
    admitted: float | None = None


# The reports about a primitive. The last three end it; after a pause its context is kept, and
# another primitive continues it.
Outcome = Sent | api.Part | api.Items | api.Paused | api.Finished | api.Failed


class Sessions(Protocol):
    """The sessions as the dispatcher sees them. Every call is answered at once."""

    @property
    def outlook(self) -> Outlook:
        """The sessions' knowledge about the future of contexts and applications."""
        ...

    def outcome(self, id: PrimitiveId, outcome: Outcome) -> None:
        """Take a report about a primitive."""
        ...

    def restarts(self, id: PrimitiveId) -> bool:
        """Forget the text of a primitive that is to run again.

        Return False, and forget nothing, if a client has some of it.
        """
        ...

    def replanned(self, known: Container[str]) -> Iterable[tuple[PrimitiveId, api.Hints]]:
        """Return new hints for those with `known` ops whose plan has changed since the last call.

        The dispatcher asks before each placement round.
        """
        ...
