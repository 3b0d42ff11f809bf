"""Completes the OpenAPI document that FastAPI makes: fields, examples, keys, answers and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from weftline.contract import errors
from weftline_server.http.reference.fields import field_of
from weftline_server.http.reference.meanings import MEANINGS
from weftline_server.http.reference.routes import ANSWERS, EVERY, JSON, REQUESTS, RouteAnswer

ABOUT = (
    "An application is a graph of calls in a session. `POST /v1/submit` adds calls, `POST /v1/get` "
    "waits for a variable. OpenAI's routes make a call of each choice."
)
_PARAMETERS = {
    "session_id": ("The session, as POST /v1/session returned it.", "s_4f1c2a9e_1"),
    "variable": ("A variable of the session.", "draft"),
    "call_id": ("A call of the session.", "c1"),
    "model": ("A model of GET /v1/models.", "default"),
    "limit": ("The most rows of the answer.", 100),
    "text": ("Only sessions whose prompts or values contain this, whatever its case.", "river"),
    "id": ("Only the finding of this id.", "3f9a1c20b7de"),
    "response_id": ("The response, as POST /v1/responses returned it.", "resp_1"),
    "conversation_id": ("The conversation, as POST /v1/conversations returned it.", "conv_1"),
    "item_id": ("An item of the conversation.", "msg_1"),
    "stream": ("Answer with the events of a response in the background.", True),
    "starting_after": ("Only events with a higher sequence_number.", 41),
    "after": ("Only items after the one of this id.", "msg_1"),
    "order": ("asc, or desc for the newest first.", "asc"),
    "lengths": ("Add the recorded lengths, and what a simulation needs of the engines.", False),
}
_KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key of the server's --api-key-file or [keys]. A server without keys takes "
    "requests of its own machine only.",
}
_NO_ERROR = {"error": {"message": "session 's_1' is unknown", "type": "UnknownSession",
                       "code": None, "param": "session_id", "call": None}}  # fmt: skip


def describe(document: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """`document` with the schemas `definitions`, and with everything that FastAPI cannot know."""
    document["info"]["description"] = ABOUT
    schemas = {**definitions, "Error": schema_of(_NO_ERROR)}
    for name, schema in schemas.items():
        if name != "Error":
            _explain(name, schema)
    document["components"] = {"schemas": schemas, "securitySchemes": {"key": _KEY}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(operation, method.upper(), path)
    return document


def _complete(operation: dict[str, Any], method: str, path: str) -> None:
    answer = ANSWERS[method, path]
    if not answer.open:
        operation["security"] = [{"key": []}]
    for parameter in operation.get("parameters", ()):
        says, example = _PARAMETERS[parameter["name"]]
        parameter |= {"description": says, "example": example}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        _explain(content["schema"]["title"], content["schema"])
        content["example"] = REQUESTS[method, path]
    operation["responses"] = dict(_responses(answer, path))


def _responses(answer: RouteAnswer, path: str) -> Iterator[tuple[str, Any]]:
    body = {kind: _content(kind, answer.example) for kind in answer.types}
    yield "200", {"description": answer.says, "content": body}
    if path == "/health/ready":
        yield "503", {"description": answer.says, "content": body}
    if answer.open:
        return
    for status, names in _by_status((*EVERY, *answer.errors)):
        schema = {"schema": {"$ref": "#/components/schemas/Error"}}
        response: dict[str, Any] = {"description": ", ".join(names), "content": {JSON: schema}}
        if status in (429, 503):
            response["headers"] = {
                "Retry-After": {
                    "description": "Seconds after which a new attempt may succeed.",
                    "schema": {"type": "integer"},
                }
            }
        yield str(status), response


def _by_status(names: Iterable[str]) -> list[tuple[int, list[str]]]:
    found: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        found.setdefault(int(getattr(errors, name).status), []).append(name)
    return sorted(found.items())


def _content(kind: str, example: Any) -> dict[str, Any]:
    if kind != JSON and not isinstance(example, str):  # the same route also answers with JSON
        return {"schema": {"type": "string", "description": "Events in the format of SSE."}}
    return {"schema": schema_of(example), "example": example}


def _explain(kind: str, schema: dict[str, Any]) -> None:
    for name, field in schema.get("properties", {}).items():
        says, example = field_of(kind, name)
        if "$ref" in field:  # beside a reference OpenAPI 3.0 readers ignore other keys
            field["allOf"] = [{"$ref": field.pop("$ref")}]
        field |= {"description": says, "examples": [example]}


_TYPES = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))


def schema_of(example: Any) -> dict[str, Any]:
    """The schema of a body like `example`, in which null stands for anything."""
    if isinstance(example, dict):
        fields = {
            name: {**schema_of(value), "description": MEANINGS[name], "examples": [value]}
            for name, value in example.items()
        }
        return {"type": "object", "properties": fields}
    if isinstance(example, list):
        return {"type": "array", "items": schema_of(example[0]) if example else {}}
    for kind, name in _TYPES:
        if isinstance(example, kind):
            return {"type": name}
    return {}
