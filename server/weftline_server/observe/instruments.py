"""Histograms of how long outputs take, and counters of tenants' tokens and costs."""

from __future__ import annotations

from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from weftline_server.observe.cost import Prices
from weftline_server.session.session import Session
from weftline_server.session.task import Step, TaskRun

# From a cached fill to a long answer, in seconds.
BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


M = TypeVar("M", Counter, Histogram)


class Children:
    """Metrics with their labels. The library's own look-up checks and joins the labels each time,
    which took a tenth of the server's time for a call."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Any] = {}

    def of(self, metric: M, *labels: str) -> M:
        """`metric` with these labels."""
        found: M | None = self._found.get((metric, *labels))
        if found is None:
            found = self._found[metric, *labels] = metric.labels(*labels)
        return found


class Latencies:
    """What a reader of an output waits for."""

    def __init__(self, registry: CollectorRegistry, children: Children) -> None:
        self._of = children.of

        def histogram(name: str, help: str, label: str = "model") -> Histogram:
            name = f"weftline_{name}_seconds"
            return Histogram(name, help, (label,), buckets=BUCKETS_S, registry=registry)

        self._first = histogram("time_to_first_token", "From a ready call to its first token")
        self._between = histogram("time_per_output_token", "Mean time between tokens of an output")
        self._whole = histogram("call", "From a call's submit to its end")
        self._http = histogram("http_request", "From an HTTP request to its first bytes", "route")

    def output_ended(self, step: Step, model: str) -> None:
        """Note one output."""
        usage, generate_s = step.usage, step.generate_s
        if usage is None or generate_s is None:
            return
        self._of(self._first, model).observe(max(0.0, usage.filled - step.queued))
        if usage.output_tokens > 1:
            self._of(self._between, model).observe(generate_s / (usage.output_tokens - 1))

    def call_ended(self, run: TaskRun, model: str) -> None:
        """Note a call that has generated all its outputs."""
        last = run.steps[-1].finished if run.steps else None
        if last is not None:
            self._of(self._whole, model).observe(max(0.0, last - run.submitted))

    def request_began(self, route: str, seconds: float) -> None:
        """Note the time to the first bytes of a response."""
        self._of(self._http, route).observe(seconds)


class Tenants:
    """Counts what each tenant uses. Tenants are those of the operator's keys, so they are few."""

    def __init__(self, registry: CollectorRegistry, children: Children, prices: Prices) -> None:
        self._of = children.of
        self._prices = prices
        self._tokens = Counter(
            "weftline_tenant_tokens",
            "Tokens of a tenant: prompt (computed), cached and output",
            ("tenant", "kind"),
            registry=registry,
        )
        self._cost = Counter(
            "weftline_tenant_cost",
            "What a tenant's tokens cost by the prices of the configuration",
            ("tenant", "model"),
            registry=registry,
        )
        self._saved = Counter(
            "weftline_tenant_saved",
            "What the KV cache saved a tenant by these prices",
            ("tenant", "model"),
            registry=registry,
        )

    def output_ended(self, session: Session, step: Step, model: str) -> None:
        """Count one output."""
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
                self._of(self._tokens, session.tenant, kind).inc(tokens)
        if self._prices:
            cost = self._prices.of_step(model, step)
            self._of(self._cost, session.tenant, model).inc(cost.cost)
            self._of(self._saved, session.tenant, model).inc(cost.saved)
