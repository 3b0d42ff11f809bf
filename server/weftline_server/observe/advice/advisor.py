"""The advisor: an observer that compares each call's prompt with the one that it follows.

The advisor keeps the last prompts in memory, and only advises: no prompt is ever changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from weftline_server.observe.advice.allowance import Allowance
from weftline_server.observe.advice.program import Finding, Program, Subject
from weftline_server.observe.advice.program_ledger import Ledger, Told
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState, TaskRun

MOST_TENANTS = 64  # the least recently used leaves


@dataclass(slots=True)
class Advisor:
    """Tells each tenant where the prompts of its programs part."""

    _ledgers: OrderedDict[str, Ledger] = field(default_factory=OrderedDict)
    _allowance: Allowance = field(default_factory=Allowance)

    def task_ended(self, session: ServerSession, run: TaskRun) -> None:
        """Look at the prompt of a call that has an answer."""
        call, steps = run.task.call, run.steps
        if call is None or run.state is not RunState.DONE or not steps or steps[0].usage is None:
            return
        passages = len(call.prompt) + len(call.placeholders) + len(call.tools)
        if not self._allowance.spend(passages, run.task.constant_bytes):
            return
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
                steps[0].finished or steps[0].usage.filled,
            )
        )

    def session_closed(self, session: ServerSession) -> None:
        """Nothing: prompts are compared across sessions."""

    def programs(self, tenant: str) -> Sequence[Program]:
        """The programs of a tenant, the least recently used first."""
        ledger = self._ledgers.get(tenant)
        return () if ledger is None else tuple(ledger.programs)

    def told(self, tenant: str) -> list[tuple[Program, Subject, Finding]]:
        """What a tenant should know, the most expensive first."""
        found = [(one, *item) for one in self.programs(tenant) for item in one.told()]
        return sorted(found, key=lambda item: -item[2].lost)
