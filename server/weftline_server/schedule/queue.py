"""The primitives that wait for an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from weftline_engine import api
from weftline_server.schedule.engines.fleet import Fleet
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.placement.scores import ORDER
from weftline_server.schedule.placement.waiting_lines import WaitingLines
from weftline_server.schedule.suspects import is_suspect

# A queued call fails when no engine has taken its kind of work for its model for this long, so that
# its graph ends.
UNAVAILABLE_S = 20.0


class Queue:
    """Waiting work by the id of its op, in the order of arrival, and in `lines` in that of the
    policy."""

    def __init__(self, policy: str) -> None:
        self._works: dict[str, Work] = {}
        self._order = ORDER[policy]
        self._lines = WaitingLines(self._order)
        self._suspects = 0
        self._of: Counter[str] = Counter()  # by salt
        self.withdrawn: set[str] = set()  # applications that end: their work is not given out

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        if not self.withdrawn:
            return iter(self._works.values())
        return (work for work in self._works.values() if self._may_start(work))

    def __contains__(self, op: object) -> bool:
        """Whether the op waits and may start."""
        work = self._works.get(op) if isinstance(op, str) else None
        return work is not None and self._may_start(work)

    def _may_start(self, work: Work) -> bool:
        return work.op.hints.application not in self.withdrawn

    def of(self, salt: str) -> int:
        """How many of the tenant with this salt wait."""
        return self._of[salt]

    def waiting(self, model: str, salt: str | None) -> int:
        """How many for this model wait: of one tenant, or of all."""
        return sum(
            work.model == model and salt in (None, work.op.salt) for work in self._works.values()
        )

    def add(self, work: Work) -> None:
        assert work.op.id not in self._works, f"{work.op.id} waits already"
        self._of[work.op.salt] += 1
        self._suspects += is_suspect(work)
        self._put(work)

    def remove(self, op: str) -> Work | None:
        """Remove an op and return its work; None if it does not wait here."""
        work = self._works.pop(op, None)
        if work is not None:
            self._lines.remove(op)
            self._suspects -= is_suspect(work)
            self._of[work.op.salt] -= 1
            if not self._of[work.op.salt]:
                del self._of[work.op.salt]
        return work

    def feed(self, op: str, part: api.Fed, last: bool) -> Work | None:
        """Append to the prompt or the items of an open op. Return its work; None if it does not
        wait here."""
        work = self._works.get(op)
        if work is None:
            return None
        self._lines.remove(op)
        fed = work.fed(part, last)
        self._put(fed)
        return fed

    def replan(self, op: str, hints: api.Hints) -> bool:
        """Give an op its new hints. Return whether it waits here."""
        work = self._works.get(op)
        if work is not None:
            self._lines.remove(op)
            self._put(replace(work, op=replace(work.op, hints=hints)))
        return work is not None

    def _put(self, work: Work) -> None:
        self._works[work.op.id] = work
        self._lines.add(work.item)

    def suspects(self) -> list[Work]:
        """The calls that have to run alone."""
        return [work for work in self if is_suspect(work)] if self._suspects else []

    def lines(self, may_start: Callable[[Work], bool] | None) -> WaitingLines:
        """The calls that may be placed beside others. Where all may, this costs nothing."""
        if may_start is None and not self._suspects and not self.withdrawn:
            return self._lines
        found = WaitingLines(self._order)
        for work in self:
            if not is_suspect(work) and (may_start is None or may_start(work)):
                found.add(work.item)
        return found

    def take_expired(self, fleet: Fleet, now: float) -> list[Work]:
        """Remove and return the work that no engine has taken for UNAVAILABLE_S."""
        kinds = {(work.model, work.item.kind) for work in self._works.values()}
        if all(fleet.waiting_since(*one, 0.0) is None for one in kinds):
            return []
        expired = [
            work
            for work in self._works.values()
            if (since := fleet.waiting_since(work.model, work.item.kind, work.queued)) is not None
            and now - since >= UNAVAILABLE_S
        ]
        for work in expired:
            self.remove(work.op.id)
        return expired
