"""Bad input is a 4xx response that names the field or variable. It changes no session."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from weftline.contract.protocol import Sampling
from weftline.errors import InvalidRequest
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig

GOOD = call("good", "hi{{output:x}}", x="x")
OUT = {"in_out": "out", "semantic_var_id": "o"}


def sampled(**sampling: Any) -> dict[str, Any]:
    return call("s", "hi{{output:o}}", o={**OUT, "sampling": sampling})


CASES: list[tuple[str, list[dict[str, Any]], int, str, str]] = [
    ("undeclared", [call("a", "{{input:q}}{{output:o}}", o=OUT)], 422, "UnknownPlaceholder", "q"),
    ("unused", [call("a", "{{output:o}}", o=OUT, q="v")], 422, "UnknownPlaceholder", "q"),
    (
        "missing",
        [call("a", "{{input:q}}{{output:o}}", q={"in_out": "in"}, o=OUT)],
        422,
        "MissingInput",
        "q",
    ),
    ("cycle", [call("a", "{{input:i}}{{output:o}}", i="o", o="o")], 422, "CyclicGraph", "a"),
    (
        "cycle of two",
        [
            call("a", "{{input:i}}{{output:o}}", i="p", o="o"),
            call("b", "{{input:i}}{{output:o}}", i="o", o="p"),
        ],
        422,
        "CyclicGraph",
        "a",
    ),
    ("duplicate", [GOOD, call("b", "hi{{output:x}}", x="x")], 422, "DuplicateProducer", "x"),
    ("taken", [call("b", "hi{{output:o}}", o="old")], 409, "AlreadySet", "old"),
    ("no output", [{"name": "a", "prompt": "hi"}], 400, "InvalidRequest", "a"),
    ("empty", [], 400, "InvalidRequest", "calls"),
    ("long", [call("a", "w " * 500 + "{{output:o}}", o=OUT)], 400, "ContextTooLong", "prompt"),
    ("zero tokens", [sampled(max_tokens=0)], 400, "InvalidRequest", "max_tokens"),
    ("negative tokens", [sampled(max_tokens=-5)], 400, "InvalidRequest", "max_tokens"),
    ("top_p", [sampled(top_p=0)], 400, "InvalidRequest", "top_p"),
    ("unknown model", [{**GOOD, "model": "gpt"}], 404, "UnknownModel", "model"),
    (
        "transform",
        [call("a", "{{output:o}}", o={**OUT, "transforms": [{"op": "eval"}]})],
        400,
        "InvalidRequest",
        "transforms",
    ),
    (
        "transform's field",
        [call("a", "{{output:o}}", o={**OUT, "transforms": [{"op": "enum"}]})],
        400,
        "InvalidRequest",
        "transforms",
    ),
    (
        "transform of an input",
        [
            call(
                "a",
                "{{input:i}}{{output:o}}",
                i={"in_out": "in", "value": "x", "transforms": [{"op": "path", "keys": 1}]},
                o=OUT,
            )
        ],
        400,
        "InvalidRequest",
        "transforms",
    ),
    ("id", [call("a", "{{output:o}}", o="../x")], 400, "InvalidRequest", "semantic_var_id"),
    ("role", [call("a", [{"role": "boss", "content": []}])], 400, "InvalidRequest", "role"),
    ("segment", [call("a", [{"text": "a", "input": "b"}])], 400, "InvalidRequest", "prompt"),
]


@pytest.mark.parametrize(
    ("calls", "status", "type_", "param"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
async def test_a_bad_submit(
    serve: Serve, calls: list[dict[str, Any]], status: int, type_: str, param: str
) -> None:
    """The whole submit is refused. The session keeps its state and goes on working."""
    server = await serve(NullConfig(context_limit=100))
    session = await server.session()
    await server.http.put(f"/v1/session/{session}/variable/old", json={"value": "set"})
    before = await server.graph(session)
    answer = await server.submit(session, *calls)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (status, type_, param)
    assert await server.graph(session) == before
    assert (await server.submit(session, GOOD)).status_code == 200
    assert (await server.get(session, "x")).json()["value"] == "hi"


async def test_a_second_submit_that_conflicts_with_the_first(serve: Serve) -> None:
    """A second producer, or a cycle through an earlier call, leaves the earlier call unchanged."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("a", "{{input:i}}{{output:o}}", i="p", o="o"))
    before = await server.graph(session)
    for refused, type_, param in (
        (call("b", "hi{{output:o}}", o="o"), "DuplicateProducer", "o"),
        (call("c", "{{input:i}}{{output:o}}", i="o", o="p"), "CyclicGraph", "c"),
    ):
        answer = await server.submit(session, GOOD, refused)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (422, type_, param)
        assert await server.graph(session) == before
    await server.http.put(f"/v1/session/{session}/variable/p", json={"value": "yes"})
    assert (await server.get(session, "o")).json()["value"] == "yes"


async def test_more_calls_than_a_submit_may_have(serve: Serve) -> None:
    """A graph may grow as large as its budget, but one submit has a limit of its own."""
    server = await serve(config=ServerConfig(max_calls=2))
    session = await server.session()
    calls = [call(f"c{i}", f"{i}{{{{output:x}}}}", x=f"x{i}") for i in range(3)]
    answer = await server.submit(session, *calls)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "calls")
    assert (await server.graph(session))["calls"] == []
    assert (await server.submit(session, *calls[:2])).status_code == 200


async def test_a_variable_that_will_not_come(serve: Serve) -> None:
    """An unknown variable, or one without a producer, is an immediate error and leaves no trace."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("a", "{{input:i}}{{output:o}}", i="topic", o="o"))
    before = await server.graph(session)
    for variable, status, type_, param in (
        ("nope", 404, "UnknownVariable", "nope"),
        ("topic", 409, "NoProducer", "topic"),
        ("o", 409, "NoProducer", "topic"),
    ):
        answer = await server.get(session, variable)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (status, type_, param)
    assert await server.graph(session) == before


@pytest.mark.parametrize(
    "value",
    [b"[" * 100_000 + b"]" * 100_000, b'"\xff"', b"NaN", b"[-Infinity]", b"1e999", b'"\\ud800"'],
    ids=["deep", "not utf-8", "nan", "infinite", "large", "lone surrogate"],
)
async def test_a_submit_with_a_value_that_is_not_json(serve: Serve, value: bytes) -> None:
    """No call of the submit is accepted, not even the valid one."""
    server = await serve()
    session = await server.session()
    x = {"in_out": "in", "value": "VALUE"}
    calls = [GOOD, call("a", "{{input:x}}{{output:o}}", x=x, o="o")]
    body = json.dumps({"session_id": session, "calls": calls}).encode()
    answer = await server.http.post("/v1/submit", content=body.replace(b'"VALUE"', value))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "InvalidRequest")
    assert (await server.graph(session))["calls"] == []


RAW: list[tuple[str, bytes, int, str]] = [
    ("not json", b'{"session_id": ', 400, "body"),
    ("not utf-8", b'{"session_id": "\xff"}', 400, "body"),
    ("nan", b'{"session_id": "s", "semantic_var_id": "v", "timeout_s": NaN}', 400, "timeout_s"),
    (
        "infinite",
        b'{"session_id": "s", "semantic_var_id": "v", "timeout_s": 1e999}',
        400,
        "timeout_s",
    ),
    ("unknown field", b'{"session_id": "s", "semantic_var_id": "v", "x": 1}', 400, "x"),
    ("wrong type", b'{"session_id": 1, "semantic_var_id": "v"}', 400, "session_id"),
    ("missing", b'{"session_id": "s"}', 400, "semantic_var_id"),
    ("criterion", b'{"session_id":"s","semantic_var_id":"v","criteria":"soon"}', 400, "criteria"),
    ("deep", b"[" * 100_000, 400, "body"),
    (
        "digits",
        b'{"session_id": "s", "semantic_var_id": "v", "timeout_s": ' + b"9" * 5000 + b"}",
        400,
        "body",
    ),
    ("unknown session", b'{"session_id": "s", "semantic_var_id": "v"}', 404, "session_id"),
]


@pytest.mark.parametrize(("body", "status", "param"), [c[1:] for c in RAW], ids=[c[0] for c in RAW])
async def test_a_bad_body(serve: Serve, body: bytes, status: int, param: str) -> None:
    """The error has a type and names the field."""
    server = await serve()
    answer = await server.http.post("/v1/get", content=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body"),
        (b'{"value": "\xff"}', "body"),
        (b'{"value": "\\ud800"}', None),
        (b'{"value": Infinity}', None),
    ],
    ids=["deep", "not utf-8", "lone surrogate", "infinite"],
)
async def test_a_bad_value(serve: Serve, body: bytes, param: str | None) -> None:
    """The variable stays empty and can be set afterwards."""
    server = await serve()
    path = f"/v1/session/{await server.session()}/variable/v"
    answer = await server.http.put(path, content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "InvalidRequest")
    assert param is None or error["param"] == param
    assert (await server.http.put(path, json={"value": 1})).status_code == 200


async def test_nan_inside_a_value(serve: Serve) -> None:
    """A value may be any JSON, but NaN is not JSON."""
    server = await serve()
    session = await server.session()
    path = f"/v1/session/{session}/variable/v"
    answer = await server.http.put(path, content=b'{"value": [1, NaN]}')
    assert answer.status_code == 400
    assert "NaN" in answer.json()["error"]["message"]
    assert (await server.http.get(path)).status_code == 404


async def test_a_body_beyond_the_limit(serve: Serve) -> None:
    """Every route responds with 413 in the form of our errors."""
    server = await serve(config=ServerConfig(max_body=1000))
    answer = await server.http.post("/v1/submit", content=b" " * 1001)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "body")


async def test_a_session_belongs_to_its_tenant(serve: Serve) -> None:
    """Every route that takes a session treats another tenant's session as unknown."""
    keys = ServerConfig(keys={"key-a": "a", "key-b": "b"})
    server = await serve(config=keys, headers={"Authorization": "Bearer key-a"})
    session = await server.session()
    other = {"Authorization": "Bearer key-b"}
    routes = [
        ("GET", f"/v1/session/{session}/graph", None),
        ("DELETE", f"/v1/session/{session}", None),
        ("PUT", f"/v1/session/{session}/variable/v", {"value": 1}),
        ("GET", f"/v1/session/{session}/variable/v", None),
        ("DELETE", f"/v1/session/{session}/variable/v", None),
        ("DELETE", f"/v1/session/{session}/call/c", None),
        ("POST", "/v1/submit", {"session_id": session, "calls": [GOOD]}),
        ("POST", "/v1/get", {"session_id": session, "semantic_var_id": "v"}),
    ]
    for method, path, body in routes:
        answer = await server.http.request(method, path, json=body, headers=other)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "UnknownSession"), path
    named: dict[str, Any]
    for named in ({"session_id": session}, {"weftline": {"session_id": session}}):
        chat = {"messages": [{"role": "user", "content": "hi"}], **named}
        answer = await server.http.post("/v1/chat/completions", json=chat, headers=other)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "UnknownSession")
    assert (await server.graph(session))["calls"] == []


async def test_every_route_denies_by_default(serve: Serve) -> None:
    """With keys configured, every route but the two of /health needs one, even for a bad request.
    New routes are checked too.
    """
    server = await serve(config=ServerConfig(keys={"key-a": "a"}))
    routes = [
        (method, re.sub("{.*?}", "x", path))
        for path, methods in server.app.openapi()["paths"].items()
        for method in methods
        if not path.startswith("/health/")
    ]
    assert len(routes) > 26
    for method, path in routes:
        for header in ("", "Bearer nope", "Basic key-a", "key-a", "Bearerkey-a"):
            headers = {"Authorization": header}
            answer = await server.http.request(method, path, json={}, headers=headers)
            assert answer.status_code == 401, (path, header)
            named = "authentication_error" if "/messages" in path else "Unauthorized"
            assert answer.json()["error"]["type"] == named


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("bearer key-a", None),
        ("BEARER  key-a", None),
        ("Bearer key-b", "an API key is needed: send 'Authorization: Bearer KEY'"),
        ("Bearer", "an API key is needed: send 'Authorization: Bearer KEY'"),
        (
            "key-a",
            "the Authorization header does not begin with the word Bearer: send 'Authorization: "
            "Bearer KEY'",
        ),
    ],
)
async def test_how_a_key_is_sent(header: str, says: str | None, serve: Serve) -> None:
    """The scheme is read in any case, as HTTP says. A key alone is refused, although it is right,
    and the answer does not repeat it."""
    server = await serve(config=ServerConfig(keys={"key-a": "a"}))
    answer = await server.http.get("/v1/models", headers={"Authorization": header})
    assert answer.status_code == (200 if says is None else 401)
    if says is not None:
        assert answer.json()["error"]["message"] == says


NUMBERS = ("temperature", "max_tokens", "top_p", "top_k", "seed")
_BIASES = "logit_bias must be a dict of token ids and numbers, got "


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *((name, "warm", f"{name} must be a number, got 'warm'") for name in NUMBERS),
        ("temperature", True, "temperature must be a number, got 'True'"),
        ("max_tokens", 1.5, "max_tokens must be a whole number, got '1.5'"),
        ("ignore_eos", "no", "ignore_eos must be True or False, got 'no'"),
        ("stop", 5, "stop must be a list of texts, got '5'"),
        ("stop", "end", "stop must be a list of texts, got 'end'"),
        ("stop", ("a", ["b"]), "stop must be a list of texts, got \"('a', ['b'])\""),
        ("stop", {"a": 1}, "stop must be a list of texts, got \"{'a': 1}\""),
        ("stop_token_ids", 5, "stop_token_ids must be a list of token ids, got '5'"),
        ("stop_token_ids", ("x",), "'x' in stop_token_ids is not the id of a token"),
        ("logit_bias", [1], _BIASES + "'[1]'"),
        ("logit_bias", {"5": "x"}, _BIASES + "\"{'5': 'x'}\""),
        ("logit_bias", {"5": None}, _BIASES + "\"{'5': None}\""),
    ],
)
def test_a_parameter_of_a_wrong_type_is_named(name: str, value: Any, says: str) -> None:
    """A program that makes a Sampling gets the error of a request, and no TypeError of ours."""
    with pytest.raises(InvalidRequest) as raised:
        Sampling(**{name: value})
    assert (raised.value.message, raised.value.param) == (says, name)
