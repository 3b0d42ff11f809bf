"""The open ops that continue the context of a paused call while the tools of that call run."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from weftline_engine.api import Op
from weftline_server.schedule.memory.applications import Applications
from weftline_server.schedule.memory.gate import Gate
from weftline_server.schedule.memory.paused_contexts import PausedContexts


class EarlyPrompts:
    """Such an op is no call yet: it ends no pause, and asks for no room. It is a call when it has
    the last part of its prompt. `pressed` are the models whose applications wait for room.
    """

    def __init__(
        self,
        applications: Applications,
        gate: Gate,
        paused_contexts: PausedContexts,
        pressed: AbstractSet[str],
    ) -> None:
        self._applications = applications
        self._gate = gate
        self._paused_contexts = paused_contexts
        self._pressed = pressed
        self._ops: set[str] = set()

    def may_fill(self, op: Op) -> bool:
        """Whether an open op may go to an engine before its prompt is complete.

        One that continues a paused context may not while an application waits for room, and if its
        own application gave its place up in the pause.
        """
        one = self._applications.find(op.hints.application)
        if one is None or not self._continues(op):
            return True
        return self._gate.is_admitted(one.id) and one.model not in self._pressed

    def begin(self, op: Op) -> bool:
        """Return whether the op is such a one, and take note of it."""
        found = op.open and self._continues(op)
        if found:
            self._ops.add(op.id)
        return found

    def end(self, op: Op) -> bool:
        """Return whether the op was such a one until now: its prompt is complete, or it was taken
        back."""
        found = op.id in self._ops
        self._ops.discard(op.id)
        return found

    def _continues(self, op: Op) -> bool:
        """Whether the op continues a context that waits for tools."""
        one = self._applications.find(op.hints.application)
        kept = {} if one is None else one.kept
        waits, tokens = self._paused_contexts.waits, op.tokens or ()
        return any(waits(context) and found.begins(tokens) for context, found in kept.items())
