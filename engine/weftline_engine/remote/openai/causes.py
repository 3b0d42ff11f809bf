"""Finds the tenant, application or prompt that may have caused an endpoint's response with 500."""

from __future__ import annotations

from weftline_engine import api


class Causes:
    """Remembers which tenants use an endpoint, by their salts."""

    def __init__(self) -> None:
        self._salts: set[str] = set()

    def saw(self, op: api.Op) -> None:
        """Note the tenant of an op."""
        self._salts.add(op.salt)

    def of(self, op: api.Op) -> str:
        """The cause to count a failure of `op` under.

        The cause is the tenant if there are several, else the application, else the prompt. The
        breaker counts failures of one cause once. So one bad prompt, application or tenant cannot
        open the breaker for all others.
        """
        if len(self._salts) > 1:
            return op.salt
        return op.hints.application or str(hash((op.tokens, op.text, repr(op.chat))))
