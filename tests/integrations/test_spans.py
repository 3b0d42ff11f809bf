"""Spans of OpenTelemetry, as a receiver of OTLP gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integrations.conftest import served

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@contextmanager
def receiver() -> Iterator[tuple[str, Queue]]:
    """A collector, and the batches that it got."""
    batches: Queue = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raise AssertionError("the exporter is asked for no compression")
            batches.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", batches
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter's batches go out after 0.1 s, not after 5."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")


def call(name: str, out: str, *reads: str) -> dict:
    prompt = name + "".join(f" {{{{input:{one}}}}}" for one in reads) + f" {{{{output:{out}}}}}"
    inputs = [{"name": one, "in_out": "in", "semantic_var_id": one} for one in reads]
    output = {"name": out, "in_out": "out", "semantic_var_id": out}
    return {"name": name, "prompt": prompt, "placeholders": [*inputs, output]}


def test_a_session_is_a_workflow_with_its_edges_as_links() -> None:
    """The client's traceparent is the parent. No text of a prompt is sent."""
    with receiver() as (endpoint, batches), served("--otlp", endpoint) as url:
        body = {
            "calls": [call("draft secret", "a"), call("polish", "b", "a")],
            "get": ["b"],
            "close": True,
        }
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        assert httpx2.post(f"{url}/v1/submit", json=body, headers=headers).status_code == 200
        batch = batches.get(timeout=60)
    sent = [s for r in batch.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert len(sent) == 3
    spans = {span.name: span for span in sent}
    by_task = {}
    for span in sent:
        said = {one.key: one.value for one in span.attributes}
        if "weftline.task.name" in said:
            by_task[said["weftline.task.name"].string_value] = (span, said)
    workflow = spans["invoke_workflow draft secret"]
    assert workflow.trace_id.hex() == TRACE and workflow.parent_span_id.hex() == PARENT
    draft, facts = by_task["draft secret"]
    polish, _ = by_task["polish"]
    assert draft.name == polish.name == "chat null"
    assert draft.parent_span_id == polish.parent_span_id == workflow.span_id
    assert [link.span_id for link in polish.links] == [draft.span_id] and not draft.links
    assert facts["gen_ai.operation.name"].string_value == "chat"
    assert facts["gen_ai.usage.input_tokens"].int_value == 3
    assert facts["weftline.request.id"].string_value == "mine"
    assert workflow.start_time_unix_nano <= draft.start_time_unix_nano
    assert draft.end_time_unix_nano <= workflow.end_time_unix_nano


def test_an_upstream_continues_the_trace() -> None:
    """A server before another one: the upstream's workflow is below the call that asked it. A trace
    that no client began has a number of the server's."""
    with receiver() as (endpoint, batches):
        ours = ("--engine", "openai", "--otlp", endpoint, "--connect")
        with served("--otlp", endpoint) as upstream, served(*ours, upstream) as url:
            body = {"calls": [call("ask", "a")], "get": ["a"], "close": True}
            httpx2.post(f"{url}/v1/submit", json=body).raise_for_status()
            spans: list = []
            while len(spans) < 4:
                batch = batches.get(timeout=60)
                spans += [s for r in batch.resource_spans for c in r.scope_spans for s in c.spans]
    [first] = [span for span in spans if not span.parent_span_id]
    [asked] = [span for span in spans if span.parent_span_id == first.span_id]
    [theirs] = [span for span in spans if span.parent_span_id == asked.span_id]
    assert first.name == "invoke_workflow ask" and asked.name.startswith("chat ")
    assert theirs.name.startswith("invoke_workflow")
    assert len({span.trace_id for span in spans}) == 1
