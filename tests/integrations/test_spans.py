"""Spans of OpenTelemetry, as a receiver of OTLP gets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integrations.conftest import served

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


headers: dict[str, str] = {}  # of the last batch that any receiver got


@contextmanager
def receiver() -> Iterator[tuple[str, Queue]]:
    """A collector, and the batches that it got."""
    batches: Queue = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raise AssertionError("the exporter is asked for no compression")
            request = ExportTraceServiceRequest.FromString(body)
            headers.update({name.lower(): value for name, value in self.headers.items()})
            batches.put(request)
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


PRICED = '[price."null"]\nprompt = 1000.0\ncached = 100.0\noutput = 2000.0\n'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
RULES = [{"when": "<tool_response>", "reply": "It is sunny."}, {"when": "", "reply": CALL}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def facts_of(span: Any) -> dict[str, Any]:
    """The attributes of a span, each as the value that is set."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@pytest.mark.parametrize("texts", [True, False])
def test_an_agent_as_an_observer_of_llms_wants_it(
    texts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools are spans, calls have cached tokens and their cost, and the key goes along. Texts are
    in the spans only where they are asked for.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20cGs6c2s=")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=mine")
    (tmp_path / "script.json").write_text(json.dumps(RULES))
    (tmp_path / "weftline.toml").write_text(PRICED)
    how = ["--null-mode", "script", "--null-script", str(tmp_path / "script.json")]
    how += ["--config", str(tmp_path / "weftline.toml"), *(["--otlp-texts"] if texts else [])]
    messages: list[Any] = [{"role": "user", "content": "How is Rome?"}]
    with receiver() as (endpoint, batches), served("--otlp", endpoint, *how) as url:
        for _ in range(2):
            said = {"session_id": "agent", "open": True}
            body = {"messages": messages, "tools": [WEATHER], "weftline": said}
            answer = httpx2.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
            messages.append(answer.json()["choices"][0]["message"])
            for one in messages[-1].get("tool_calls") or ():
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": "24 C"})
        httpx2.delete(f"{url}/v1/session/agent").raise_for_status()
        batch = batches.get(timeout=60)
    assert headers["authorization"] == "Basic cGs6c2s="
    [resource] = batch.resource_spans
    assert facts_of(resource.resource)["openinference.project.name"] == "mine"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    calls = sorted(
        (s for s in spans if s.name == "chat null"), key=lambda s: s.start_time_unix_nano
    )
    [tool] = [span for span in spans if span.name == "execute_tool get_weather"]
    [workflow] = [span for span in spans if span.name.startswith("invoke_workflow")]
    assert [link.span_id for link in calls[1].links] == [calls[0].span_id]
    assert [link.span_id for link in tool.links] == [calls[0].span_id]
    assert calls[0].end_time_unix_nano <= tool.start_time_unix_nano
    assert tool.end_time_unix_nano <= calls[1].end_time_unix_nano
    facts = facts_of(calls[1])
    used = {name: facts[f"gen_ai.usage.{name}"] for name in ("input_tokens", "output_tokens")}
    cached = facts["gen_ai.usage.cache_read.input_tokens"]
    cost = 1000 * (used["input_tokens"] - cached) + 100 * cached + 2000 * used["output_tokens"]
    assert facts["gen_ai.usage.cost"] == facts["llm.cost.total"] == pytest.approx(cost / 1e6)
    kinds = [facts_of(span)["openinference.span.kind"] for span in (workflow, calls[0], tool)]
    assert kinds == ["CHAIN", "LLM", "TOOL"]
    sent = {**facts_of(workflow), **facts_of(tool), **facts}
    found = {name: sent.get(name) for name in TEXTS}
    assert found == (TEXTS if texts else dict.fromkeys(TEXTS))
    if texts:
        asked = json.loads(sent["gen_ai.input.messages"])
        assert [one["role"] for one in asked][:2] == ["user", "assistant"]
    else:
        assert "Rome" not in str(batch)


TEXTS = {
    "input.value": "How is Rome?",
    "output.value": "It is sunny.",
    "gen_ai.tool.call.arguments": '{"city": "Rome"}',
    "gen_ai.tool.call.result": "24 C",
    "gen_ai.output.messages": json.dumps(
        [{"role": "assistant", "parts": [{"type": "text", "content": "It is sunny."}]}]
    ),
}
