"""Whether what applications need fits into the engines' own memory, without their host memory.

Applications are admitted to both memories together. A context moves to host memory only where the
engines' own is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weftline_engine.api import Op
from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.gate import Gate
from weftline_server.schedule.memory.paused_contexts import PausedContexts


class OwnMemory:
    """The own memory of each model's engines. `keeping` finds a model's applications with a kept
    context."""

    def __init__(
        self,
        gate: Gate,
        paused_contexts: PausedContexts,
        keeping: Callable[[str], Iterable[Application]],
    ) -> None:
        self._gate = gate
        self._paused_contexts = paused_contexts
        self._keeping = keeping
        self._sizes: dict[str, tuple[int | None, int]] = {}

    def resize(self, model: str, own: int | None, host: int) -> None:
        """Set the tokens of a model's engines, None if unknown, and those that their host
        memory holds beside it."""
        self._sizes[model] = own, host

    def has_room(self, model: str, more: int = 0) -> bool:
        """Whether the admitted applications, the kept contexts of the others and as many `more`
        tokens fit. What is of unknown size has room."""
        size, _ = self._sizes.get(model, (None, 0))
        if size is None:
            return True
        others = (
            kept.tokens
            for one in self._keeping(model)
            if not self._gate.is_admitted(one.id)
            for context, kept in one.kept.items()
            if not self._paused_contexts.is_copied(kept.engine, context)
        )
        return sum(one.own for one in self._gate.admitted(model)) + sum(others) + more <= size

    def is_short(self, model: str) -> bool:
        """Whether applications wait for room, or need host memory."""
        _, host = self._sizes.get(model, (None, 0))
        return self._gate.line.waits(model) or (host > 0 and not self.has_room(model))

    def may_fill(self, model: str, op: Op) -> bool:
        """Whether the prefix of a prompt that may come fits beside all contexts that are kept.

        A fill is a guess, and takes the room of contexts that may be evicted. Without this rule a
        fill took that of a paused context, which was to be copied to host memory when another agent
        came for its room: 291 tokens were computed again.
        """
        return not self._gate.line.waits(model) and self.has_room(model, len(op.tokens or ()))
