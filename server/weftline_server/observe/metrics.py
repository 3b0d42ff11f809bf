"""What Prometheus reads at GET /metrics: counters of what ended, gauges of what is under way.

Labels are the names of models, engines, states, criteria and routes, which a server has few of and
a client cannot add to. Ids of sessions and calls are in the logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from weftline_server.runtime.driver import Driver
from weftline_server.schedule.engines.slot import EngineState
from weftline_server.session.session import Session
from weftline_server.session.task import Step, TaskRun

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

M = TypeVar("M", Counter, Histogram)

# From a cached fill to a long answer, in seconds.
BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})


class Metrics:
    """The metrics of one application; a registry of its own, so that two in a process are two."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._registry = CollectorRegistry()
        self._labelled: dict[tuple[Any, ...], Any] = {}
        self._registry.register(_UnderWay(driver))

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"weftline_{name}", help, labels, registry=self._registry)

        self._calls = counter(
            "calls", "Calls that have ended", "model", "engine", "state", "criterion"
        )
        self._cached = counter(
            "prompt_cached_tokens", "Prompt tokens out of the KV cache", "model", "engine"
        )
        self._computed = counter(
            "prompt_computed_tokens", "Prompt tokens computed", "model", "engine"
        )
        self._output = counter("output_tokens", "Tokens generated", "model", "engine")
        self._phases = Histogram(
            "weftline_phase_seconds",
            "What an output took in each phase",
            ("phase", "model", "criterion"),
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._requests = counter(
            "http_requests", "HTTP requests answered", "method", "route", "status"
        )

    def render(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._registry)

    def task_ended(self, session: Session, run: TaskRun) -> None:
        """Count a call that has ended, with the outputs that it got."""
        model = self._model(run.task.resource)
        criterion = session.plan.objective.get(run.primitives[0].id, "latency")
        engine = (run.steps[-1].engine if run.steps else None) or "none"
        self._of(self._calls, model, engine, run.state.value, criterion).inc()
        for step in run.steps:
            self._output_ended(step, model, criterion)

    def _output_ended(self, step: Step, model: str, criterion: str) -> None:
        usage, phases, engine = step.usage, step.phases, step.engine or "none"
        if usage is None or phases is None:
            return
        self._of(self._cached, model, engine).inc(usage.cached_tokens)
        self._of(self._computed, model, engine).inc(usage.prompt_tokens - usage.cached_tokens)
        self._of(self._output, model, engine).inc(usage.output_tokens)
        for phase, seconds in phases.items():
            self._of(self._phases, phase, model, criterion).observe(seconds)

    def _of(self, metric: M, *labels: str) -> M:
        """`metric` with these labels; its own look-up checks and joins them each time."""
        found: M | None = self._labelled.get((metric, *labels))
        if found is None:
            found = self._labelled[metric, *labels] = metric.labels(*labels)
        return found

    def request_ended(self, method: str, route: str | None, status: int) -> None:
        """Count an HTTP request; `route` is a template, None where no route was met."""
        method = method if method in _METHODS else "other"
        self._of(self._requests, method, route or "none", str(status)).inc()

    def _model(self, name: str | None) -> str:
        models = self._driver.dispatcher.models
        return name if name in models else models[0] if models else "none"


class _UnderWay(Collector):
    """Reads the queue, the engines and the sessions at the moment of the scrape."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def collect(self) -> Iterator[GaugeMetricFamily]:
        dispatcher = self._driver.dispatcher
        sessions = GaugeMetricFamily("weftline_sessions_open", "Sessions that are open")
        sessions.add_metric((), len(self._driver.registry))
        yield sessions
        queue = GaugeMetricFamily("weftline_queue_length", "Primitives that wait for an engine")
        queue.add_metric((), dispatcher.queued)
        yield queue
        running = GaugeMetricFamily(
            "weftline_running_calls", "Primitives on an engine", labels=("engine",)
        )
        tokens = GaugeMetricFamily(
            "weftline_running_tokens",
            "Tokens that these hold at most, prompt and output",
            labels=("engine",),
        )
        for engine, (count, held) in dispatcher.running().items():
            running.add_metric((engine,), count)
            tokens.add_metric((engine,), held)
        yield running
        yield tokens
        states = GaugeMetricFamily(
            "weftline_engine_state", "1 for the state that it is in", labels=("engine", "state")
        )
        for engine, state in dispatcher.states.items():
            for each in EngineState:
                states.add_metric((engine, each.value), float(each is state))
        yield states


class CountRequests:
    """ASGI middleware: tells the metrics of every request, by the template of its route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # what the server answers for a bug of its own

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", None)
            self._metrics.request_ended(scope["method"], route, status)
