"""A session as spans of OpenTelemetry, by its conventions for generative AI.

The session is a workflow span, and each task a span below it: an inference, a retrieval or a tool,
also one that the client ran between two calls. A dataflow edge is a link from the reader's span to
the producer's. Prompts and answers are in the spans only if the operator asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from weftline_server.observe.client_tools import ClientToolRun
from weftline_server.observe.cost import Prices
from weftline_server.observe.edges import Links, links_of
from weftline_server.observe.span_texts import call_texts, session_texts, tool_texts
from weftline_server.session.origin import span_of, trace_of
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes, RunState, TaskRun

Attributes = dict[str, str | int | float | list[str]]

_NANO = 1_000_000_000
_TOOL = MappingProxyType(
    {"gen_ai.operation.name": "execute_tool", "openinference.span.kind": "TOOL"}
)
# What OpenInference, which Phoenix reads, calls an operation.
_KINDS = MappingProxyType(
    {"execute_tool": "TOOL", "retrieval": "RETRIEVER", "embeddings": "EMBEDDING"}
)
# Of a session; later ones have no span. A thousand take 30 ms of the event loop.
MOST_TASKS = 1000


class _Ids(IdGenerator):  # type: ignore[misc]  # OpenTelemetry is read without types
    """Numbers of spans that engines were told before; else random ones."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.trace: int | None = None
        self.span: int | None = None

    def generate_trace_id(self) -> int:
        found, self.trace = self.trace, None
        return found or self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        found, self.span = self.span, None
        return found or self._random.generate_span_id()


class SessionSpans:
    """Exports a session's spans when it is closed, with their cost where models have prices, and
    `with_texts` also with prompts and answers. The exporter's own thread sends them.

    The exporter reads headers, such as a key, from OTEL_EXPORTER_OTLP_HEADERS, and attributes of
    all spans from OTEL_RESOURCE_ATTRIBUTES.
    """

    def __init__(self, endpoint: str, prices: Prices, *, with_texts: bool = False) -> None:
        self._prices = prices
        self._with_texts = with_texts
        resource = Resource.create({"service.name": "weftline"})
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=resource, shutdown_on_exit=False, id_generator=self._ids
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("weftline")

    def task_ended(self, session: ServerSession, run: TaskRun) -> None:
        """Nothing: spans are made when the session is closed."""

    def session_closed(self, session: ServerSession) -> None:
        """Make the spans of a session that has ended. One without a task has none."""
        if not session.tasks:
            return
        runs = list(session.tasks.values())[:MOST_TASKS]
        wall = time.time() - time.monotonic()  # the wall clock at second 0 of the session's clock

        def at(moment: float) -> int:
            return int((moment + wall) * _NANO)

        parent = TraceContextTextMapPropagator().extract(
            {"traceparent": runs[0].origin.traceparent}
        )
        ended = max([session.ended or session.opened, *(_end(run) for run in runs)])
        links = links_of(session)
        self._ids.trace = trace_of(session.id)
        workflow = self._tracer.start_span(
            f"invoke_workflow {runs[0].task.name}",
            context=parent,
            start_time=at(session.opened),
            attributes=self._of_session(session, runs[0].task.name, links),
        )
        self._ids.trace = None  # a client's trace has a number of its own
        inside = trace.set_span_in_context(workflow)
        made: dict[str, Span] = {}
        for run in sorted(runs, key=lambda run: run.submitted):
            read = [made[one] for one in links.above.get(run.task.id, ()) if one in made]
            self._ids.span = span_of(session.id, run.task.id)
            name, attributes = described(run)
            span = self._tracer.start_span(
                name,
                inside,
                SpanKind.CLIENT if run.task.call is not None else SpanKind.INTERNAL,
                {**attributes, **self._also(session, run)},
                [Link(one.get_span_context()) for one in read],
                start_time=at(run.submitted),
            )
            if run.error is not None:
                span.set_attribute("error.type", run.error.type)
                span.set_status(Status(StatusCode.ERROR, run.error.type))
            made[run.task.id] = span
            span.end(at(max(run.submitted, _end(run))))
        for tool in links.tools[:MOST_TASKS]:
            if tool.ended is not None and tool.asked_by in made:
                self._tool(session, tool, inside, made[tool.asked_by], at)
        workflow.end(at(ended))

    def _tool(
        self,
        session: ServerSession,
        tool: ClientToolRun,
        inside: Context,
        asked: Span,
        at: Callable[[float], int],
    ) -> None:
        """The span of a tool that the client ran, with a link to the answer that called it."""
        found = {**_TOOL, "gen_ai.tool.name": tool.name, "gen_ai.tool.call.id": tool.call}
        if self._with_texts:
            found |= tool_texts(session, tool)
        assert tool.ended is not None, "it has a result"
        name, links = f"execute_tool {tool.name}", [Link(asked.get_span_context())]
        span = self._tracer.start_span(
            name, inside, SpanKind.INTERNAL, found, links, start_time=at(tool.began)
        )
        span.end(at(tool.ended))

    def _of_session(self, session: ServerSession, name: str, links: Links) -> Attributes:
        texts = session_texts(session, links) if self._with_texts else {}
        return {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": name,
            "gen_ai.conversation.id": session.id,
            "openinference.span.kind": "CHAIN",
            "weftline.tenant": session.tenant,
            **texts,
        }

    def _also(self, session: ServerSession, run: TaskRun) -> Attributes:
        """The cost of a call, by the names that Langfuse and OpenInference have, and its texts."""
        found: Attributes = {}
        if run.task.call is None:
            return found
        if self._prices:
            cost = self._prices.of_task(run)
            found |= {"gen_ai.usage.cost": cost.cost, "llm.cost.total": cost.cost}
            found["weftline.saved_by_cache"] = cost.saved
        if self._with_texts:
            found |= call_texts(session, run, run.task.call)
        return found

    def close(self) -> None:
        """Send what is left, and end the exporter's thread."""
        self._provider.shutdown()


def _end(run: TaskRun) -> float:
    return max((step.finished or step.queued for step in run.steps), default=run.submitted)


def described(run: TaskRun) -> tuple[str, Attributes]:
    """The name of a task's span, and its attributes."""
    task = run.task
    found: Attributes = {
        "weftline.task.id": task.id,
        "weftline.task.name": task.name,
        "weftline.task.state": run.state.value,
    }
    if run.origin.request_id:
        found["weftline.request.id"] = run.origin.request_id
    if task.call is None:
        first = task.primitives[0]
        operation = first.traits.operation or first.kind
        if operation == "execute_tool":
            found["gen_ai.tool.name"] = task.resource or task.name
        return f"{operation} {task.resource or task.name}", {
            **found,
            "gen_ai.operation.name": operation,
            "openinference.span.kind": _KINDS.get(operation, "CHAIN"),
        }
    found |= {
        "gen_ai.operation.name": "chat",
        "openinference.span.kind": "LLM",
        "gen_ai.provider.name": "weftline",
        "gen_ai.request.model": task.resource,
        "gen_ai.response.model": task.resource,
    }
    if run.state is RunState.DONE:
        found |= _used([step for step in run.steps if step.usage is not None])
    return f"chat {task.resource}", found


def _used(steps: list[PrimitiveTimes]) -> Attributes:
    usages = [step.usage for step in steps if step.usage is not None]
    first = steps[0]
    return {
        "gen_ai.usage.input_tokens": sum(one.prompt_tokens for one in usages),
        "gen_ai.usage.cache_read.input_tokens": sum(one.cached_tokens for one in usages),
        "llm.token_count.prompt_details.cache_read": sum(one.cached_tokens for one in usages),
        "gen_ai.usage.output_tokens": sum(one.output_tokens for one in usages),
        "gen_ai.response.finish_reasons": [s.reason.value for s in steps if s.reason is not None],
        "weftline.engine": first.engine or "",
        "weftline.queue_s": sum(step.queue_s or 0.0 for step in steps),
        "weftline.fill_s": sum(step.fill_s or 0.0 for step in steps),
        "weftline.generate_s": sum(step.generate_s or 0.0 for step in steps),
    }
