"""Primitives whose hints have changed before their end, until the dispatcher asks for them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.runtime.attempts import hints
from weftline_server.runtime.containment import Containment
from weftline_server.schedule.turns import Pace
from weftline_server.session.session import ServerSession


class HintUpdates:
    """Collects primitives by session; the dispatcher takes their hints before it places."""

    def __init__(self, contained: Containment, pace: Pace) -> None:
        self._contained = contained
        self._pace = pace
        self._due: dict[str, tuple[ServerSession, dict[str, None]]] = {}

    def note(self, session: ServerSession, primitives: Iterable[str]) -> None:
        """The hints of these primitives have changed."""
        self._due.setdefault(session.id, (session, {}))[1].update(dict.fromkeys(primitives))

    def forget(self, session: str) -> None:
        self._due.pop(session, None)

    def drain(self, known: Container[str]) -> Iterator[tuple[PrimitiveId, api.Hints]]:
        """Return the present hints of the collected primitives whose ops are `known`."""
        while self._due:
            _, (session, primitives) = self._due.popitem()
            found: list[tuple[PrimitiveId, api.Hints]] = []
            self._contained.run(session, _collect, session, primitives, known, found, self._pace)
            yield from found


def _collect(
    session: ServerSession,
    primitives: Iterable[str],
    known: Container[str],
    found: list[tuple[PrimitiveId, api.Hints]],
    pace: Pace,
) -> None:
    for id in primitives:
        full = PrimitiveId(session.id, id)
        if str(full) in known:
            found.append((full, hints(session, session.graph.primitives[id], pace)))
