"""The limits of one session's use of the server, and its use so far. Normal applications stay below
them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weftline.contract.errors import BudgetExceeded
from weftline.contract.vectors import Embedded, Vectors, as_json
from weftline_server.graph.primitive import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one session, from its opening to its close.

    `edges` are inputs that come from variables. `tokens` are those of every prompt that is run, and
    the most that its output may have. `value_bytes` are the UTF-8 bytes of constants, values that
    are set and values that are made, objects as JSON. `seconds` is its age.
    """

    calls: int = 100_000  # ten of the largest submits
    edges: int = 1_000_000
    tokens: int = 1 << 30
    value_bytes: int = 1 << 28
    seconds: float = 7 * 86_400.0


class Spent:
    """How much of its budget a session has used. A request beyond it is refused and
    does not count.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.calls = self.edges = self.tokens = self.value_bytes = 0

    def take_tasks(self, tasks: Sequence[Task], age_s: float) -> None:
        """Charge the session for all of `tasks`, or for none of them. Raises BudgetExceeded."""
        edges = sum([len(task.reads) for task in tasks])
        size = sum([task.constant_bytes for task in tasks])
        self._check("seconds", age_s, "close the session and open another")
        self._check("calls", self.calls + len(tasks), "split the application in two")
        self._check("edges", self.edges + edges, "split the application in two")
        self._check("value_bytes", self.value_bytes + size, "send less text")
        self.calls += len(tasks)
        self.edges += edges
        self.value_bytes += size

    def take_tokens(self, count: int) -> None:
        """Charge the tokens of a prompt and of its longest output. Raises BudgetExceeded."""
        self._check("tokens", self.tokens + count, "shorten prompts, or ask for fewer max_tokens")
        self.tokens += count

    def take_value(self, value: Any, age_s: float) -> None:
        """Charge a value that a client sets. Raises BudgetExceeded."""
        self.check_value(value, age_s)
        self.add_value(value)

    def check_value(self, value: Any, age_s: float) -> None:
        """Raise BudgetExceeded unless a client may set this value."""
        self._check("seconds", age_s, "close the session and open another")
        self._check("value_bytes", self.value_bytes + value_bytes(value), "send less text")

    def add_value(self, value: Any) -> None:
        """Charge a value. A value that a call has made is never refused, but the next may be."""
        self.value_bytes += value_bytes(value)

    def _check(self, name: str, wanted: float, advice: str) -> None:
        limit = getattr(self.budget, name)
        if wanted > limit:
            raise BudgetExceeded(
                f"the session's budget of {limit:,} {name} does not allow {wanted:,.0f}: {advice}",
                param=name,
            )


def value_bytes(value: Any) -> int:
    """Return the bytes of a text in UTF-8, or of the JSON of any other value, in which vectors are
    base64 text."""
    if isinstance(value, Embedded):
        without = replace(value, vectors=Vectors(width=value.vectors.width))
        return value_bytes(without.to_json()) + 4 * -(-len(value.vectors.data) // 3)
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, default=as_json)
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
