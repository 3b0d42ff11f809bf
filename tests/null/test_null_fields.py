"""A field that is null is absent: each field, of each object of a body, that may be absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import pytest

from weftline.contract.bodies import JsonBody
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.json_bodies import parse

DOCUMENT = create_app(ServerConfig(), {}).openapi()


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


KINDS = {
    one.__name__: one
    for one in _below(JsonBody)
    if is_dataclass(one) and one.__module__.startswith("weftline")  # a test may add a step
}
OUTPUT = {"name": "o", "in_out": "out"}
CALL = {"name": "c", "prompt": "Hi {{output:o}}", "placeholders": [OUTPUT]}
CHAT = [{"role": "user"}, {"role": "assistant", "content": [{"output": "o"}]}]
BODY = {"calls": [CALL]}
SAID = [{"role": "user", "content": "Hi"}]
CASE = {"when": {"op": "truthy"}, "take": "b"}
READS = {"in": {"var": "a"}}
STORED = {**READS, "store": "s"}
TOOL = {"function": {"name": "f"}}
CHOSEN = {"type": "function", "name": "f"}
# What an object has besides the fields that may be absent.
LEAST: dict[str, dict[str, Any]] = {
    "AddedTools": {"type": "additional_tools", "tools": []},
    "AgentStep": {"call": {**CALL, "prompt": CHAT}},
    "AllowedInChat": {"type": "allowed_tools", "allowed_tools": {"tools": [TOOL]}},
    "AllowedNames": {"tools": [TOOL]},
    "AllowedTools": {"type": "allowed_tools", "tools": [CHOSEN]},
    "AnthropicMessage": {"role": "user", "content": "Hi"},
    "Body": {"calls": [CALL]},
    "Branch": {"on": {"var": "a"}, "cases": [CASE], "default": "c"},
    "Call": {"name": "c", "prompt": "Hi"},
    "CalledFunction": {"name": "f"},
    "Case": CASE,
    "ChatMessage": {"role": "user"},
    "ChatRequest": {"messages": [{"role": "user", "content": "Hi"}]},
    "ChosenTool": CHOSEN,
    "ClientTool": {"name": "f"},
    "CompletionRequest": {"prompt": "Hi"},
    "ConversationItems": {"items": []},
    "ConversationName": {"id": "conv_1"},
    "CountRequest": {"model": "m", "messages": SAID},
    "CustomFormat": {"type": "text"},
    "CustomTool": {"type": "custom", "name": "x"},
    "Delete": STORED,
    "DetokenizeRequest": {"tokens": [1]},
    "DocumentBlock": {"type": "document", "source": {"type": "text"}},
    "DocumentSource": {"type": "text"},
    "Each": {"over": {"var": "a"}, "body": BODY, "collect": {"x": "y"}},
    "Embed": READS,
    "EmbeddingsRequest": {"input": "Hi"},
    "Fetch": STORED,
    "Function": {"name": "f"},
    "FunctionStep": {"function": "f"},
    "GetBody": {"session_id": "s", "semantic_var_id": "v"},
    "HiddenThoughts": {"type": "redacted_thinking"},
    "Ingest": STORED,
    "InputCall": {"type": "function_call", "call_id": "c", "name": "f"},
    "InputCustomCall": {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    "InputMessage": {"role": "user", "content": "Hi"},
    "InputResult": {"type": "function_call_output", "output": "1"},
    "InputThoughts": {"type": "reasoning"},
    "JsonSchema": {"schema": {}},
    "Loop": {"carry": {"a": "b"}, "next": {"a": "d"}, "body": BODY, "most": 2,
             "until": {"on": "d", "when": {"op": "truthy"}}},
    "Mean": {"parts": [{"var": "a"}]},
    "Merge": READS,
    "Message": {"role": "user"},
    "MessageChoice": {"type": "auto"},
    "MessagesRequest": {"model": "m", "messages": SAID, "max_tokens": 9},
    "NamespaceTool": {"type": "namespace", "name": "g", "tools": []},
    "NamedFunction": {"name": "f"},
    "NamedTool": TOOL,
    "OfferedTool": {"name": "f", "input_schema": {}},
    "OtherBlock": {"type": "image"},
    "OtherPart": {"type": "image"},
    "OtherTool": {"type": "web_search"},
    "OutputFormat": {"type": "json_schema", "schema": {}},
    "Parts": {"parts": [{"var": "a"}]},
    "ProvenancePart": {"text": "Hi"},
    "Placeholder": OUTPUT,
    "Reading": READS,
    "RefusalPart": {"type": "refusal", "refusal": "No."},
    "Rerank": {**READS, "query": {"var": "q"}},
    "RerankRequest": {"query": "q", "documents": ["d"]},
    "ResponseFormat": {"type": "text"},
    "ResponseTool": CHOSEN,
    "ResponsesRequest": {"input": "Hi"},
    "Search": STORED,
    "Segment": {"text": "Hi"},
    "SetVariable": {"value": 1},
    "SignedThoughts": {"type": "thinking", "thinking": "x"},
    "Source": {"var": "a"},
    "StepError": {"code": "E", "message": "no"},
    "StructuredOutputs": {"regex": "a"},
    "SubmitBody": {"session_id": "s", "calls": [CALL]},
    "Text": {"parts": [{"var": "a"}]},
    "TextBlock": {"type": "text", "text": "Hi"},
    "TextFormat": {"type": "text"},
    "TextPart": {"type": "text", "text": "Hi"},
    "ThinkingConfig": {"type": "disabled"},
    "TokenizeRequest": {"prompt": "Hi"},
    "Tool": TOOL,
    "ToolCall": TOOL,
    "ToolResultBlock": {"type": "tool_result", "tool_use_id": "t"},
    "ToolUseBlock": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    "Until": {"on": "d", "when": {"op": "truthy"}},
}  # fmt: skip


def _read(kind: type, body: dict[str, Any]) -> Any:
    return parse(json.dumps(body).encode(), kind)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_null_is_absent(name: str) -> None:
    """The object with the null is the object without the field."""
    kind, least = KINDS[name], LEAST.get(name, {})
    absent = _read(kind, least)
    for field in fields(kind):
        written = field.name.rstrip("_")
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if has_default and written not in least:
            assert _read(kind, {**least, written: None}) == absent, written


def test_every_object_of_a_body_has_this_rule() -> None:
    """The served schemas, and the bodies around them. Only the server makes a ServedTool."""
    parts = set(DOCUMENT["components"]["schemas"]) - {"Criterion", "InOut", "Error", "ServedTool"}
    assert parts - set(KINDS) == set()
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert content["schema"]["title"] in KINDS


def test_null_in_a_value_stays() -> None:
    """A schema, a value and a document are the client's own."""
    made = _read(KINDS["Function"], {"name": "f", "parameters": {"default": None}})
    assert made.parameters == {"default": None}
