"""What each route answers: an example of its body, and the errors that it may have.

The examples are data. A test sends a request to each route and compares the fields of its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from weftline_engine import api

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"

# Error types by what a route does. Those of EVERY may come from any route but the open ones.
EVERY = ("Unauthorized", "Forbidden", "Overloaded")
OF_BODY = ("InvalidRequest", "BodyTooLarge")
OF_SESSION = ("UnknownSession", "ServerRestarted")
OF_WORK = ("EngineUnavailable",)
OF_CALLS = (
    "ContextTooLong", "UnknownModel", "UnknownStore", "UnknownPlaceholder", "MissingInput",
    "DuplicateProducer", "CyclicGraph", "BudgetExceeded",
)  # fmt: skip
OF_RESULT = (
    "Cancelled", "Skipped", "TransformFailed", "ClientStepFailed", "ClientGone", "EngineFailed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """A route's answer: what it is, an example, its content types, and the errors' types."""

    says: str
    example: Any
    errors: tuple[str, ...] = ()
    types: tuple[str, ...] = (JSON,)
    open: bool = False  # it needs no key


_ID = "s_4f1c2a9e_00000000000000000000000000000001"
_CALL_ID = "c1"
_VALUE = {"semantic_var_id": "draft", "status": "ready", "value": "Rivers shape the land"}
_USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 5,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 8},
}
_COUNTED = {
    **dict.fromkeys(api.COUNTS, 0), "prompt_tokens": 12, "cached_tokens": 8, "output_tokens": 5,
}  # fmt: skip
_STEP = {
    "queued_s": 0.001, "sent_s": 0.001, "started_s": 0.002, "filled_s": 0.03, "finished_s": 0.2,
    "filled_early": False, "queue_s": 0.001, "kv_s": 0.0, "fill_s": 0.028, "generate_s": 0.17,
    "transform_s": 0.0, **_COUNTED, "finish_reason": "stop", "engine": "torch", "node": "",
}  # fmt: skip
_TASK = {
    "call_id": _CALL_ID, "owner": None, "name": "draft", "model": "default", "state": "done",
    "template": "Write a headline about rivers: {{output:line}}", "inputs": [],
    "outputs": ["draft"], "restored_thoughts": 0, "depth": 0, "objective": "latency", "group": None,
    "prefix_hashes": ["9f2c"], "engine": "torch", "node": "", "error": None, "submitted_s": 0.001,
    "ended_s": 0.2,
    "queue_s": 0.001, "fill_s": 0.028, "generate_s": 0.17, "transform_s": 0.0,
    **_COUNTED, "computed_tokens": 4, "steps": [_STEP],
}  # fmt: skip
_PLACEMENT = [{"engine": "torch", "room": True, "missing_tokens": 20, "prefix": 80, "group": 0,
               "load": 100, "gather": 0, "score": 180}]  # fmt: skip
_ENGINE = {
    "name": "torch", "state": "ready", "model": "default", "running": 3, "max_running": 64,
    "waiting": 2, "tokens": {"computed": 900, "cached": 400, "output": 700},
    "pool": {"size": 65536, "running": 2000, "kept": 500, "evictable": 4000, "host": 0,
             "host_size": 0},
    "rates": None,
}  # fmt: skip
_GRAPH = {
    "session_id": _ID,
    "calls": [{**_TASK, "placement": _PLACEMENT}],
    "steps": [],
    "variables": [
        {"semantic_var_id": "draft", "state": "ready", "producer": _CALL_ID, "consumers": [],
         "criteria": None, "chars": 21, "client_reads": 1},
    ],
    "engines": [{"name": "torch", "state": "ready", "model": "default", "node": "", "lacks": []}],
    "tools": [{"tool_id": f"{_CALL_ID}:tool0", "name": "search", "state": "done",
               "asked_by": _CALL_ID, "read_by": "reply", "began_s": 0.2, "ended_s": 0.9}],
    "edges": [],
    "critical": {"tasks": [_CALL_ID], "seconds": {"generate": 0.17},
                 "sentence": "86 % of the time was generating text; shortening 'draft' helps most"},
}  # fmt: skip
_ROW = {
    "session_id": _ID, "name": "Write a headline about {topic}", "application": "draft",
    "state": "open", "phase": "running", "opened": 1800000000.0, "age_s": 1.5,
    "calls": 1, "steps": 0, "states": {"done": 1}, "prompt_tokens": 12, "cached_tokens": 8,
    "output_tokens": 5, "engines": ["torch"], "error": None,
}  # fmt: skip
_ADVICE = {
    "id": "3f9a1c20b7de", "name": "answer", "model": "default", "engine": "torch",
    "is_template": True, "begins": "You answer from the handbook. It is {now}.",
    "cause": "variable", "message": 0, "role": "system", "variables": ["now"], "tool": None,
    "offset": 18, "calls": 312,
    "times": 303, "lost_tokens": 751440, "prompt_tokens": 843648, "cached_tokens": 92200,
    "before": "2026-03-01T09:00:11", "after": "2026-03-01T09:00:14",
    "says": "system message, variable `now`, 2,480 tokens behind it are computed anew in 97 % of "
            "312 calls: move it after `rules`",
}  # fmt: skip
_MODEL = {"id": "default", "object": "model", "created": 0, "owned_by": "weftline",
          "max_model_len": 8192}  # fmt: skip
_RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1800000000, "model": "default",
    "background": False, "conversation": None, "instructions": None, "max_output_tokens": 64,
    "previous_response_id": None, "store": True, "temperature": None, "top_p": None,
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {},
    "status": "completed", "error": None, "incomplete_details": None,
    "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "The Rhine.", "annotations": [],
                             "logprobs": []}]}],
    "usage": {"input_tokens": 12,
              "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
              "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0},
              "total_tokens": 17},
}  # fmt: skip
_SAID = {"role": "user", "content": "Name a river."}
_ITEM = {"role": "user", "content": [{"type": "input_text", "text": "Name a river."}],
         "type": "message", "id": "msg_2", "status": "completed"}  # fmt: skip
_ITEMS = {"object": "list", "data": [_ITEM], "first_id": "msg_2", "last_id": "msg_2",
          "has_more": False}  # fmt: skip
_CONVERSATION = {"id": "conv_1", "object": "conversation", "created_at": 1800000000,
                 "metadata": {"topic": "rivers"}}  # fmt: skip
_OF_RESPONSE = ("UnknownResponse", "StorageFull")
_OF_CONVERSATION = ("UnknownConversation", "StorageFull")
# A response in the background may run in a session of another server.
_OF_RUNNING = (*_OF_RESPONSE, "UnknownSession", "EngineUnavailable")
_ONE, _CONVERSATIONS = "/v1/responses/{response_id}", "/v1/conversations"
_TALK = "/v1/conversations/{conversation_id}"

_MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "default",
    "content": [{"type": "text", "text": "The Rhine."}], "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8,
              "output_tokens": 5},
}  # fmt: skip
_OF_KEPT = ("UnknownResponse", "UnknownConversation", "StorageFull")
_TO_OPENAI = (*OF_BODY, *OF_SESSION, *OF_WORK, *OF_CALLS, *OF_RESULT)

ANSWERS: Mapping[tuple[str, str], RouteAnswer] = MappingProxyType({
    ("POST", "/v1/session"): RouteAnswer(
        "The session is open.", {"session_id": _ID, "protocol": "1"}, (*OF_BODY, *OF_WORK)),
    ("POST", "/v1/session/{session_id}/heartbeat"): RouteAnswer(
        "The session stays open.", {"session_id": _ID}, OF_SESSION),
    ("GET", "/v1/engines"): RouteAnswer("The engines.", {"engines": [_ENGINE]}),
    ("GET", "/v1/engines/follow"): RouteAnswer(
        "Server-sent events `engines`.", 'event: engines\ndata: {"engines": []}\n\n', (),
        (EVENTS,)),
    ("GET", "/v1/sessions"): RouteAnswer(
        "The tenant's sessions.", 
        {"sessions": [_ROW], "total": 1, "found": 1, "all_read": True}, ("InvalidRequest",)),
    ("GET", "/v1/advice"): RouteAnswer(
        "The advice, a row for each finding. It is empty where no prompts part, and soon after a "
        "restart.", {"advice": [_ADVICE], "total": 1}, ("InvalidRequest",)),
    ("DELETE", "/v1/session/{session_id}"): RouteAnswer(
        "The session is closed.", {"session_id": _ID}, OF_SESSION),
    ("GET", "/v1/session/{session_id}/graph"): RouteAnswer("The graph.", _GRAPH, OF_SESSION),
    ("GET", "/v1/session/{session_id}/trace"): RouteAnswer(
        "The trace. Its events are those of Chrome's format.",
        {"displayTimeUnit": "ms", "traceEvents": []}, OF_SESSION),
    ("GET", "/v1/session/{session_id}/events"): RouteAnswer(
        "The events.",
        {"events": [{"n": 1, "t": 0.0, "event": "submitted", "about": _CALL_ID, "text": ""}]},
        OF_SESSION),
    ("GET", "/v1/session/{session_id}/follow"): RouteAnswer(
        "Server-sent events `changes`.", 'event: changes\ndata: {"tasks": [], "edges": []}\n\n',
        OF_SESSION, (EVENTS,)),
    ("GET", "/v1/session/{session_id}/call/{call_id}"): RouteAnswer(
        "The call.",
        {**_TASK, "placement": _PLACEMENT,
         "segments": [{"role": None, "kind": "constant", "name": None,
                                "semantic_var_id": None, "text": "Write a headline", "chars": 16,
                                "transforms": []}]},
        (*OF_SESSION, "UnknownCall")),
    ("DELETE", "/v1/session/{session_id}/call/{call_id}"): RouteAnswer(
        "The call's state.", {"call_id": _CALL_ID, "state": "cancelled"},
        (*OF_SESSION, "UnknownCall")),
    ("PUT", "/v1/session/{session_id}/variable/{variable}"): RouteAnswer(
        "The variable's state.", {"semantic_var_id": "topic", "status": "ready"},
        (*OF_BODY, *OF_SESSION, "AlreadySet", "BudgetExceeded")),
    ("DELETE", "/v1/session/{session_id}/variable/{variable}"): RouteAnswer(
        "The variable's state.", {"semantic_var_id": "draft", "status": "failed"},
        (*OF_SESSION, "UnknownVariable")),
    ("GET", "/v1/session/{session_id}/variable/{variable}"): RouteAnswer(
        "The variable as it stands.", {**_VALUE, "text": "Rivers shape the land", "error": None},
        (*OF_SESSION, "UnknownVariable")),
    ("POST", "/v1/submit"): RouteAnswer(
        "What was added, with the values and the graph that were asked for. With `stream` or "
        "`watch` server-sent events.",
        {"session_id": _ID,
         "calls": [{"name": "draft", "call_id": _CALL_ID, "outputs": {"line": "draft"}}],
         "steps": [], "values": {"draft": "Rivers shape the land"}},
        (*OF_BODY, *OF_SESSION, *OF_WORK, *OF_CALLS, *OF_RESULT, "NoProducer", "AlreadySet",
         "UnknownVariable", "KeyReused"),
        (JSON, EVENTS)),
    ("POST", "/v1/get"): RouteAnswer(
        "The value. With `criteria` also a `criterion`: the one that `holds`, and what it "
        "`reached`, a call that was planned, queued, running, refused (its engine takes no change) "
        "or ended. "
        "With `stream` server-sent events: `part`, `criterion`, then `value`.", _VALUE,
        (*OF_BODY, *OF_SESSION, *OF_RESULT, "UnknownVariable", "NoProducer", "Timeout"),
        (JSON, EVENTS)),
    ("POST", "/v1/chat/completions"): RouteAnswer(
        "The completion. With `stream` chunks as server-sent events.",
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 1800000000,
         "model": "default",
         "choices": [{"index": 0,
                      "message": {"role": "assistant", "content": "The Rhine.", "refusal": None},
                      "logprobs": None, "finish_reason": "stop"}],
         "usage": _USAGE},
        _TO_OPENAI, (JSON, EVENTS)),
    ("POST", "/v1/completions"): RouteAnswer(
        "The completion. With `stream` chunks as server-sent events.",
        {"id": "cmpl-1", "object": "text_completion", "created": 1800000000, "model": "default",
         "choices": [{"index": 0, "text": " the Volga.", "logprobs": None,
                      "finish_reason": "stop"}],
         "usage": _USAGE},
        _TO_OPENAI, (JSON, EVENTS)),
    ("POST", "/v1/embeddings"): RouteAnswer(
        "The vectors.",
        {"object": "list",
         "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
         "model": "minilm", "usage": {"prompt_tokens": 7, "total_tokens": 7}},
        (*OF_BODY, *OF_WORK, "UnknownModel", "EngineFailed", "Cancelled")),
    ("POST", "/v1/rerank"): RouteAnswer(
        "The documents by their scores, the best first.",
        {"model": "minilm", "results": [{"index": 0, "relevance_score": 0.83}],
         "meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 20}}},
        (*OF_BODY, *OF_WORK, "UnknownModel", "EngineFailed", "Cancelled")),
    ("GET", "/health/live"): RouteAnswer("The process runs.", {"status": "live"}, open=True),
    ("GET", "/health/ready"): RouteAnswer(
        "Every model has an engine that takes work. With 503 the same body, and at least one has "
        "none, the server drains, or the store of sessions is unavailable.",
        {"status": "ready", "engines": {"torch": "ready"}}, open=True),
    ("GET", "/version"): RouteAnswer("The version.", {"version": "0.4.0"}),
    ("GET", "/metrics"): RouteAnswer(
        "Prometheus's text format.", "weftline_queue_length 0.0\n", ("Forbidden",), (TEXT,)),
    ("GET", "/v1/models"): RouteAnswer(
        "The models.", {"object": "list", "data": [_MODEL]}, OF_WORK),
    ("GET", "/v1/models/{model}"): RouteAnswer("The model.", _MODEL, (*OF_WORK, "UnknownModel")),
    ("POST", "/tokenize"): RouteAnswer(
        "The tokens.",
        {"model": "default", "count": 2, "max_model_len": 8192, "tokens": [19556, 28],
         "token_strs": None},
        (*OF_BODY, *OF_WORK, "UnknownModel")),
    ("POST", "/detokenize"): RouteAnswer(
        "The text.", {"prompt": "Name a"}, (*OF_BODY, *OF_WORK, "UnknownModel")),
    ("POST", "/v1/responses"): RouteAnswer(
        "The response. With `stream` typed events.", _RESPONSE, (*_TO_OPENAI, *_OF_KEPT),
        (JSON, EVENTS)),
    ("GET", _ONE): RouteAnswer(
        "The response. With `stream` its events from number `starting_after` on.", _RESPONSE,
        ("InvalidRequest", *_OF_RUNNING), (JSON, EVENTS)),
    ("GET", f"{_ONE}/input_items"): RouteAnswer(
        "The items.", _ITEMS, ("InvalidRequest", *_OF_RESPONSE)),
    ("POST", f"{_ONE}/cancel"): RouteAnswer(
        "The response as it has ended.", _RESPONSE, ("InvalidRequest", *_OF_RUNNING)),
    ("DELETE", _ONE): RouteAnswer(
        "The response is deleted.", {"id": "resp_1", "object": "response", "deleted": True},
        _OF_RUNNING),
    ("POST", _CONVERSATIONS): RouteAnswer(
        "The conversation.", _CONVERSATION, (*OF_BODY, "EngineUnavailable", "StorageFull")),
    ("GET", _TALK): RouteAnswer("The conversation.", _CONVERSATION, _OF_CONVERSATION),
    ("POST", _TALK): RouteAnswer(
        "The conversation.", _CONVERSATION, (*OF_BODY, *_OF_CONVERSATION)),
    ("GET", f"{_TALK}/items"): RouteAnswer(
        "The items.", _ITEMS, ("InvalidRequest", *_OF_CONVERSATION)),
    ("POST", f"{_TALK}/items"): RouteAnswer(
        "The items that were added.", _ITEMS, (*OF_BODY, *_OF_CONVERSATION)),
    ("GET", f"{_TALK}/items/{{item_id}}"): RouteAnswer("The item.", _ITEM, _OF_CONVERSATION),
    ("DELETE", f"{_TALK}/items/{{item_id}}"): RouteAnswer(
        "The conversation without the item.", _CONVERSATION, _OF_CONVERSATION),
    ("DELETE", _TALK): RouteAnswer(
        "The conversation is deleted.",
        {"id": "conv_1", "object": "conversation.deleted", "deleted": True}, _OF_CONVERSATION),
    ("POST", "/v1/messages"): RouteAnswer(
        "The message. With `stream` its events.", _MESSAGE, _TO_OPENAI, (JSON, EVENTS)),
    ("POST", "/v1/messages/count_tokens"): RouteAnswer(
        "The tokens of the prompt.", {"input_tokens": 12}, (*OF_BODY, *OF_WORK, "UnknownModel")),
})  # fmt: skip

_SUBMIT = {
    "calls": [
        {
            "name": "draft",
            "prompt": "Write a headline about {{input:topic}}: {{output:line}}",
            "placeholders": [
                {"name": "topic", "in_out": "in", "value": "rivers"},
                {"name": "line", "in_out": "out", "semantic_var_id": "draft"},
            ],
        }
    ],
    "get": ["draft"],
    "close": True,
}
# A whole request for each route that takes a body.
REQUESTS: Mapping[tuple[str, str], Any] = MappingProxyType({
    ("POST", "/v1/submit"): _SUBMIT,
    ("POST", "/v1/session"): {"beats": True},
    ("POST", "/v1/get"): {"session_id": _ID, "semantic_var_id": "draft", "timeout_s": 30.0},
    ("PUT", "/v1/session/{session_id}/variable/{variable}"): {"value": "rivers"},
    ("POST", "/v1/chat/completions"): {
        "messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 16},
    ("POST", "/v1/responses"): {"input": "Name a river.", "max_output_tokens": 64},
    ("POST", _CONVERSATIONS): {"metadata": {"topic": "rivers"}},
    ("POST", _TALK): {"metadata": {"topic": "rivers"}},
    ("POST", f"{_TALK}/items"): {"items": [_SAID]},
    ("POST", "/v1/messages"): {
        "model": "default", "max_tokens": 64,
        "messages": [{"role": "user", "content": "Name a river."}]},
    ("POST", "/v1/messages/count_tokens"): {
        "model": "default", "messages": [{"role": "user", "content": "Name a river."}]},
    ("POST", "/tokenize"): {"prompt": "Name a river."},
    ("POST", "/detokenize"): {"tokens": [19556, 28]},
    ("POST", "/v1/completions"): {"prompt": "The longest river of Europe is", "max_tokens": 16},
    ("POST", "/v1/embeddings"): {"input": "Where does the Rhine rise?"},
    ("POST", "/v1/rerank"): {"query": "Where does the Rhine rise?",
                             "documents": ["The Rhine rises in the Alps.", "Bread needs flour."]},
})  # fmt: skip
