"""The advisor: an observer that compares each call's prompt with the one that it follows.

It keeps the last prompts in memory, and only advises: no prompt is ever changed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from weftline_server.observe.advice.ledger import Ledger, Told
from weftline_server.observe.advice.program import Finding, Program, Subject
from weftline_server.session.session import Session
from weftline_server.session.task import RunState, TaskRun

MOST_TENANTS = 64  # the least recently used leaves
# What the advisor may cost. Each call adds UNITS_EACH, up to UNITS_SAVED. A call takes a unit for
# each passage and each tool of its prompt, and for each UNIT_CHARS of text; a unit takes about
# 0.3 us. A call for which too little is left is not looked at, so that prompts with hundreds of
# messages are sampled.
UNITS_EACH, UNITS_SAVED = 32, 20_000
UNIT_CHARS = 2000


@dataclass(slots=True)
class Advisor:
    """Tells each tenant where the prompts of its programs part."""

    _ledgers: OrderedDict[str, Ledger] = field(default_factory=OrderedDict)
    _units: int = UNITS_SAVED

    def task_ended(self, session: Session, run: TaskRun) -> None:
        """Look at the prompt of a call that has an answer."""
        call, steps = run.task.call, run.steps
        if call is None or run.state is not RunState.DONE or not steps or steps[0].usage is None:
            return
        self._units = min(UNITS_SAVED, self._units + UNITS_EACH)
        units = len(call.prompt) + len(call.placeholders) + len(call.tools)
        units += run.task.constant_bytes // UNIT_CHARS
        if units > self._units:
            return
        self._units -= units
        ledger = self._ledgers.pop(session.tenant, None) or Ledger()
        self._ledgers[session.tenant] = ledger
        if len(self._ledgers) > MOST_TENANTS:
            self._ledgers.popitem(last=False)
        ledger.note(
            Told(
                call,
                session.variables,
                session.id if session.stays else None,
                steps[0].usage,
                steps[0].engine or "",
                steps[0].queued,
            )
        )

    def session_closed(self, session: Session) -> None:
        """Nothing: prompts are compared across sessions."""

    def told(self, tenant: str) -> list[tuple[Program, Subject, Finding]]:
        """What a tenant should know, the most expensive first."""
        ledger = self._ledgers.get(tenant)
        programs = () if ledger is None else ledger.programs
        found = [(one, *item) for one in programs for item in one.told()]
        return sorted(found, key=lambda item: -item[2].lost)
