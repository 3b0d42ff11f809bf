"""How long a model waits for its server, and when a wait for a graph's variables times out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import openai

from weftline.contract.protocol import Call, InOut


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that one attempt of a call may take, and the number of attempts after the first."""

    seconds: float = math.inf
    retries: int = openai.DEFAULT_MAX_RETRIES

    @staticmethod
    def of(timeout: Any, max_retries: int | None) -> Patience:
        """The patience that ChatOpenAI's `timeout` (in any form) and `max_retries` stand for."""
        if isinstance(timeout, tuple):  # connect, read, …
            timeout = timeout[1]
        seconds = getattr(timeout, "read", timeout)
        return Patience(
            math.inf if seconds is None else float(seconds),
            openai.DEFAULT_MAX_RETRIES if max_retries is None else max_retries,
        )

    @property
    def in_all(self) -> float:
        """Seconds until all attempts are over, if none is answered."""
        return self.seconds * (1 + self.retries)


class Deadlines:
    """The times at which waits for the variables of one run time out.

    A call may take the time of all its model's attempts, counted from when its inputs are ready. So
    a graph may take as long as the plain chain would on the graph's longest path.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._waits: dict[str, tuple[str, ...]] = {}

    def wait(self, variable: str, for_: Iterable[str]) -> None:
        """Note that `variable` also waits for others: a branch for its sides, for example."""
        self._waits[variable] = tuple(for_)

    def submitted(
        self,
        calls: Iterable[Call],
        patience: Mapping[str, Patience],
        now: float,
        later: Iterable[str] = (),
    ) -> None:
        """Note `calls`, producers before consumers, at time `now` in seconds.

        `patience` maps output variables to the patience of their model. The variables of `later`
        are made by steps of the client, so their times are not known.
        """
        self._due |= dict.fromkeys(later, math.inf)
        for call in calls:
            reads = [p.semantic_var_id for p in call.placeholders if p.in_out is InOut.IN]
            for output in call.placeholders:
                if output.in_out is InOut.OUT and output.semantic_var_id is not None:
                    made = output.semantic_var_id
                    before = [name for name in reads if name is not None]
                    before += self._waits.get(made, ())
                    start = max([now, *(self._due_of(name, now) for name in before)])
                    self._due[made] = start + patience.get(made, Patience()).in_all

    def left(self, variables: Iterable[str], now: float) -> dict[str, float]:
        """Seconds until the wait for each of `variables` times out, for those that have a limit."""
        due = {name: self._due_of(name, math.inf) - now for name in variables}
        return {name: max(seconds, 0.0) for name, seconds in due.items() if seconds < math.inf}

    def _due_of(self, name: str, otherwise: float) -> float:
        """When the wait for a variable times out, and `otherwise` where that is not known."""
        if name in self._due:
            return self._due[name]
        waits = self._waits.get(name, ())
        return max((self._due_of(one, otherwise) for one in waits), default=otherwise)
