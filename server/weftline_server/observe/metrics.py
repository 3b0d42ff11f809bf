"""The metrics of GET /metrics: counters of ended calls, gauges of the present load.

Labels are the names of models, engines, states, criteria and routes. A server has few of these, and
a client cannot add any. The ids of sessions and calls are in the logs instead.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from weftline_server.observe.cost import Prices
from weftline_server.observe.instruments import Latencies, Tenants
from weftline_server.observe.tally import Tally
from weftline_server.runtime.service import EngineStatus, Service
from weftline_server.schedule.engines.member import EngineState
from weftline_server.schedule.lengths import NEAR, Exactness
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes, RunState, TaskRun

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})


def _version() -> str:
    try:
        return importlib.metadata.version("weftline")
    except importlib.metadata.PackageNotFoundError:  # it is on PYTHONPATH, but not installed
        return "unknown"


VERSION = _version()


class Metrics:
    """The metrics of one application, in a registry of its own: a process may hold several."""

    def __init__(self, service: Service, prices: Prices) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Load(service))
        tally = Tally()
        self._registry.register(tally)
        self.latencies = Latencies(tally)
        self._tenants = Tenants(tally, prices)
        counter = tally.counts
        self._calls = counter(
            "calls", "Calls that have ended", "model", "engine", "state", "criterion"
        )
        self._steps = counter(
            "steps", "Steps beside calls that have ended", "kind", "engine", "state"
        )
        self._cached = counter(
            "prompt_cached_tokens", "Prompt tokens read from the KV cache", "model", "engine"
        )
        self._computed = counter(
            "prompt_computed_tokens", "Prompt tokens computed", "model", "engine"
        )
        self._output = counter("output_tokens", "Tokens generated", "model", "engine")
        self._drafts = counter(
            "draft_tokens", "Guessed tokens that were verified", "model", "engine", "outcome"
        )
        self._phases = tally.durations(
            "phase", "Seconds that an output took in each phase", "phase", "model", "criterion"
        )
        self._requests = counter(
            "http_requests", "HTTP requests answered", "method", "route", "status"
        )

    def render(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def task_ended(self, session: ServerSession, run: TaskRun) -> None:
        """Count a call that has ended, and each output that it generated; or another step."""
        model = run.task.resource or "none"
        criterion = session.plan.objective.get(run.primitives[0].id, "latency")
        steps = run.steps
        engine = (steps[-1].engine if steps else None) or "none"
        if run.task.call is None:
            kind = str(run.task.primitives[0].kind)
            self._steps.add(1, kind, engine, run.state.value)
            return
        self._calls.add(1, model, engine, run.state.value, criterion)
        if run.state is RunState.DONE:
            self.latencies.call_ended(run.submitted, steps, model)
        for step in steps:
            self._output_ended(step, model, criterion)
            self.latencies.output_ended(step, model)
            self._tenants.output_ended(session, step, model)

    def session_closed(self, session: ServerSession) -> None:
        """Nothing: what a session did is counted with its tasks."""

    def _output_ended(self, step: PrimitiveTimes, model: str, criterion: str) -> None:
        usage, phases, engine = step.usage, step.phases, step.engine or "none"
        if usage is None or phases is None:
            return
        self._cached.add(usage.cached_tokens, model, engine)
        self._computed.add(usage.prompt_tokens - usage.cached_tokens, model, engine)
        self._output.add(usage.output_tokens, model, engine)
        if usage.drafted_tokens:
            rejected = usage.drafted_tokens - usage.accepted_tokens
            self._drafts.add(usage.accepted_tokens, model, engine, "accepted")
            self._drafts.add(rejected, model, engine, "rejected")
        for phase, seconds in phases.items():
            self._phases.observe(seconds, phase, model, criterion)

    def request_answered(self, method: str, route: str | None, status: int) -> None:
        """Count an HTTP request whose response begins; `route` is a template, None if no route
        matched.
        """
        method = method if method in _METHODS else "other"
        self._requests.add(1, method, route or "none", str(status))


class _Load(Collector):
    """Reads the queue, the engines and the sessions at the moment of the scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[GaugeMetricFamily]:
        status = self._service.engines.status()
        yield _gauge("sessions_open", "Sessions that are open", {(): status.sessions})
        yield _gauge("queue_length", "Primitives that wait for an engine", {(): status.queued})
        yield _gauge(
            "applications",
            "Applications that are admitted to the KV caches, and that wait for that",
            {("admitted",): status.admitted, ("waiting",): status.waiting},
            "state",
        )
        build = (VERSION, platform.python_version())
        yield _gauge(
            "build_info", "Always 1; the labels name the build", {build: 1}, "version", "python"
        )
        yield from _of_engines(status.engines)
        yield from _of_lengths(status.lengths)


def _gauge(
    name: str, help: str, values: Mapping[tuple[str, ...], float], *labels: str
) -> GaugeMetricFamily:
    """A gauge with its present values, by their labels."""
    family = GaugeMetricFamily(f"weftline_{name}", help, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _of_lengths(lengths: Exactness) -> Iterator[GaugeMetricFamily]:
    """How exact the predicted lengths of the newest outputs were."""
    near = zip(NEAR, lengths.near, strict=True)
    yield _gauge(
        "predicted_outputs_near",
        "Share of the newest outputs whose predicted length is off by at most so many tokens",
        {(str(tokens),): share for tokens, share in near},
        "tokens",
    )
    yield _gauge(
        "predicted_outputs_error_tokens",
        "Mean error of the predicted lengths of the newest outputs, and of their bounds",
        {("prediction",): lengths.error, ("bound",): lengths.error_of_bound},
        "of",
    )


def _of_engines(engines: Sequence[EngineStatus]) -> Iterator[GaugeMetricFamily]:
    kv: dict[tuple[str, ...], float] = {}
    for engine in engines:
        if engine.kv_tokens is not None:
            kv[engine.name, "size"] = engine.kv_tokens
        kv[engine.name, "kept"] = engine.kept
    yield _gauge(
        "running_calls",
        "Primitives on an engine",
        {(one.name,): one.running for one in engines},
        "engine",
    )
    yield _gauge(
        "running_tokens",
        "Upper bound of the tokens of these primitives, prompt and output",
        {(one.name,): one.tokens for one in engines},
        "engine",
    )
    yield _gauge(
        "kv_pool_bytes",
        "Size of the engine's KV cache",
        {(one.name,): one.kv_bytes for one in engines if one.kv_bytes is not None},
        "engine",
    )
    yield _gauge(
        "kv_tokens",
        "The engine's KV cache in tokens: its size, and what is kept in it for calls to come",
        kv,
        "engine",
        "state",
    )
    yield _gauge(
        "engine_state",
        "1 for the engine's present state",
        {
            (one.name, state.value): float(state is one.state)
            for one in engines
            for state in EngineState
        },
        "engine",
        "state",
    )


class CountRequests:
    """ASGI middleware that counts every request in `metrics`, by the template of its route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        answered = False

        def answer(status: int) -> None:
            nonlocal answered
            answered = True
            route = getattr(scope.get("route"), "path", None)
            self._metrics.request_answered(scope["method"], route, status)
            self._metrics.latencies.request_began(route or "none", time.monotonic() - began)

        # A client that has read a response finds it counted: the count comes before the bytes.
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not answered:  # Starlette answers 500 outside of this middleware
                answer(500)
            raise
