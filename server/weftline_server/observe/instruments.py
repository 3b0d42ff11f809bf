"""Histograms of how long outputs take, and counters of tenants' tokens and costs."""

from __future__ import annotations

from collections.abc import Sequence

from weftline_server.observe.cost import Prices
from weftline_server.observe.tally import Tally
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes


class Latencies:
    """What a reader of an output waits for."""

    def __init__(self, tally: Tally) -> None:
        self._first = tally.durations(
            "time_to_first_token", "From a ready call to its first token", "model"
        )
        self._between = tally.durations(
            "time_per_output_token", "Mean time between tokens of an output", "model"
        )
        self._whole = tally.durations("call", "From a call's submit to its end", "model")
        self._http = tally.durations(
            "http_request", "From an HTTP request to its first bytes", "route"
        )

    def output_ended(self, step: PrimitiveTimes, model: str) -> None:
        usage, generate_s = step.usage, step.generate_s
        if usage is None or generate_s is None:
            return
        self._first.observe(max(0.0, usage.filled - step.queued), model)
        if usage.output_tokens > 1:
            self._between.observe(generate_s / (usage.output_tokens - 1), model)

    def call_ended(self, submitted: float, steps: Sequence[PrimitiveTimes], model: str) -> None:
        """Note a call that has generated all its outputs."""
        last = steps[-1].finished if steps else None
        if last is not None:
            self._whole.observe(max(0.0, last - submitted), model)

    def request_began(self, route: str, seconds: float) -> None:
        """Note the time to the first bytes of a response."""
        self._http.observe(seconds, route)


class Tenants:
    """Counts what each tenant uses. Tenants are those of the operator's keys, so they are few."""

    def __init__(self, tally: Tally, prices: Prices) -> None:
        self._prices = prices
        self._tokens = tally.counts(
            "tenant_tokens",
            "Tokens of a tenant: prompt (computed), cached and output",
            "tenant",
            "kind",
        )
        self._cost = tally.counts(
            "tenant_cost",
            "What a tenant's tokens cost by the prices of the configuration",
            "tenant",
            "model",
        )
        self._saved = tally.counts(
            "tenant_saved", "What the KV cache saved a tenant by these prices", "tenant", "model"
        )

    def output_ended(self, session: ServerSession, step: PrimitiveTimes, model: str) -> None:
        usage = step.usage
        if usage is None:
            return
        kinds = {
            "prompt": usage.prompt_tokens - usage.cached_tokens,
            "cached": usage.cached_tokens,
            "output": usage.output_tokens,
        }
        for kind, tokens in kinds.items():
            if tokens:
                self._tokens.add(tokens, session.tenant, kind)
        if self._prices:
            cost = self._prices.of_step(model, step)
            self._cost.add(cost.cost, session.tenant, model)
            self._saved.add(cost.saved, session.tenant, model)
