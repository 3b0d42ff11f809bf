"""The primitives that wait for an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
    """Waiting work by the id of its op, in the order of arrival.

    `lines` has what may be placed beside others, in the order of the policy. The rest waits outside
    the lines: a call that runs alone, one with a prompt whose application is not admitted to the KV
    cache, and one whose application ends.
    """

    def __init__(self, policy: str) -> None:
        self._works: dict[str, Work] = {}
        self.lines = WaitingLines(ORDER[policy])
        self._suspects = 0
        self._of: Counter[str] = Counter()  # by salt
        self._parts: dict[str, dict[str, None]] = {}  # the ops of each application
        self._held: set[str] = set()  # applications that are not admitted
        self._allowed_at: dict[str, float] = {}  # ops that were held: when they no longer were
        self._withdrawn: set[str] = set()  # applications that end: their work is not given out

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        if not self._withdrawn:
            return iter(self._works.values())
        return (work for work in self._works.values() if self._is_given_out(work))

    def __contains__(self, op: object) -> bool:
        """Whether the op waits and may start."""
        work = self._works.get(op) if isinstance(op, str) else None
        return work is not None and self._is_given_out(work)

    def _is_given_out(self, work: Work) -> bool:
        return work.op.hints.application not in self._withdrawn

    def _is_held(self, work: Work) -> bool:
        return work.op.hints.application in self._held and work.item.has_prompt

    def allow(self, application: str, may_start: bool, now: float) -> None:
        """Say whether the calls of an application with a prompt may be placed from now on."""
        if may_start and application in self._held:
            for op in self._parts.get(application, ()):
                if self._is_held(self._works[op]):
                    self._allowed_at[op] = now
        (self._held.discard if may_start else self._held.add)(application)
        self._line_up(application)

    def allowed_at(self, op: str) -> float | None:
        """When the op, which was held at first, might be placed; None if it was never held."""
        return self._allowed_at.get(op)

    def withdraw(self, application: str) -> None:
        """Give out no work of an application that ends."""
        self._withdrawn.add(application)
        self._line_up(application)

    def forget(self, application: str) -> None:
        """Take note that an application has ended."""
        self._withdrawn.discard(application)
        self._held.discard(application)
        self._line_up(application)

    def _line_up(self, application: str) -> None:
        for op in self._parts.get(application, ()):
            self._put(self._works[op])

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
        self._parts.setdefault(work.op.hints.application, {})[work.op.id] = None
        self._put(work)

    def remove(self, op: str) -> Work | None:
        """Remove an op and return its work; None if it does not wait here."""
        work = self._works.pop(op, None)
        if work is not None:
            self.lines.discard(op)
            self._allowed_at.pop(op, None)
            self._suspects -= is_suspect(work)
            parts = self._parts[work.op.hints.application]
            del parts[op]
            if not parts:
                del self._parts[work.op.hints.application]
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
        fed = work.fed(part, last)
        self._put(fed)
        return fed

    def replan(self, op: str, hints: api.Hints) -> bool:
        """Give an op its new hints. Return whether it waits here."""
        work = self._works.get(op)
        if work is not None:
            self._put(replace(work, op=replace(work.op, hints=hints)))
        return work is not None

    def _put(self, work: Work) -> None:
        """Keep the work, and let it wait in its line if it may be placed beside others."""
        self._works[work.op.id] = work
        self.lines.discard(work.op.id)
        if self._is_given_out(work) and not is_suspect(work) and not self._is_held(work):
            self.lines.add(work.item)

    def suspects(self) -> list[Work]:
        """The calls that have to run alone."""
        return [work for work in self if is_suspect(work)] if self._suspects else []

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
