"""What tokens cost, by the operator's prices, and what the KV cache saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Usage
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes, TaskRun

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a million tokens, in a currency of the operator's.

    `cached` is that of prompt tokens which come from the KV cache; None is that of all others.
    """

    prompt: float = 0.0
    cached: float | None = None
    output: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prompt", "cached", "output"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InvalidRequest(f"a price is at least 0, got {value}", param=f"price.{name}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What was to be paid, and what the cache saved."""

    cost: float = 0.0
    saved: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cost + other.cost, self.saved + other.saved)

    def body(self) -> dict[str, float]:
        """As JSON. Rounded to a billionth, which a float holds for every sum that matters."""
        return {"cost": round(self.cost, 9), "saved": round(self.saved, 9)}


class Prices:
    """The prices of models by name. A model without a price costs nothing."""

    def __init__(self, by_model: Mapping[str, Price]) -> None:
        self._by_model = by_model

    def __bool__(self) -> bool:
        return bool(self._by_model)

    def of_usages(self, model: str, usages: Iterable[Usage]) -> Cost:
        price = self._by_model.get(model)
        if price is None:
            return Cost()
        total = Cost()
        cheap = price.prompt if price.cached is None else price.cached
        for usage in usages:
            computed = usage.prompt_tokens - usage.cached_tokens
            paid = computed * price.prompt + usage.cached_tokens * cheap
            paid += usage.output_tokens * price.output
            saved = usage.cached_tokens * (price.prompt - cheap)
            total += Cost(paid / MILLION, saved / MILLION)
        return total

    def of_step(self, model: str, step: PrimitiveTimes) -> Cost:
        """The cost of one output; nothing before it has ended."""
        return Cost() if step.usage is None else self.of_usages(model, (step.usage,))

    def of_task(self, run: TaskRun) -> Cost:
        return sum((self.of_step(run.task.resource, step) for step in run.steps), Cost())

    def of_session(self, session: ServerSession) -> Cost:
        """The cost of a session so far."""
        return sum((self.of_task(run) for run in session.tasks.values()), Cost())

    def shown(self, cost: Cost) -> dict[str, float]:
        """Two fields of an answer; none where no model has a price."""
        return cost.body() if self else {}
