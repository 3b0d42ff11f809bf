"""Values at the boundary of what JSON can say, at every field and every route: never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.steps.wire import each, run
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig

HUGE = 10**400
NUMBERS: list[Any] = [
    HUGE, -HUGE, 10**40, 2**63, 2**31, -1, 0, 1.5, 1e308, True, None, "1", [], {}, "\ud800", "",
]  # fmt: skip
SAMPLED = (
    "max_tokens", "min_tokens", "top_k", "logprobs", "temperature", "top_p", "min_p", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "stop", "ignore_eos",
    "constraint",
)  # fmt: skip
CHAT = (
    *SAMPLED, "max_completion_tokens", "n", "top_logprobs", "priority", "stream", "model", "tools",
    "tool_choice", "parallel_tool_calls", "response_format", "session_id", "criteria", "messages",
    "weftline", "stream_options", "logit_bias", "best_of", "functions", "cache_salt",
)  # fmt: skip


async def answered(server: Server, method: str, path: str, body: Any) -> int:
    """The status of the answer, which has an error in our form where it is one."""
    sent = json.dumps(body).encode()
    answer = await server.http.request(method, path, content=sent, timeout=60)
    assert answer.status_code < 500, (path, body, answer.text[:300])
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) >= {"message", "type", "code", "param", "call"}
    return answer.status_code


async def test_every_field_at_its_boundary(serve: Serve) -> None:
    """10**400 in max_tokens, min_tokens, top_k and logprobs was a 500."""
    server = await serve()
    messages = [{"role": "user", "content": "hi"}]
    for value in NUMBERS:
        for field in CHAT:
            body = {"messages": messages, "max_tokens": 1, field: value}
            await answered(server, "POST", "/v1/chat/completions", body)
            body = {"prompt": "hi", "max_tokens": 1, field: value}
            await answered(server, "POST", "/v1/completions", body)
        for field in SAMPLED:
            holder = {"in_out": "out", "sampling": {"max_tokens": 1, field: value}}
            body = {"calls": [call("c", "x{{output:o}}", o=holder)], "close": True}
            await answered(server, "POST", "/v1/submit", body)
        for field in ("calls", "steps", "session_id", "open", "detach", "get", "stream", "watch",
                      "parts", "graph", "close"):  # fmt: skip
            body = {"calls": [call("c", "x{{output:o}}", o="o")], "close": True, field: value}
            await answered(server, "POST", "/v1/submit", body)
        for field in ("session_id", "semantic_var_id", "criteria", "timeout_s", "wait", "stream"):
            body = {"session_id": "s", "semantic_var_id": "v", "timeout_s": 0, field: value}
            await answered(server, "POST", "/v1/get", body)


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "assistant", "content": "x", "tool_calls": 5}],
        [{"role": "assistant", "content": "x", "tool_calls": {"a": 1}}],
        [{"role": "assistant", "tool_calls": [5]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": 1, "arguments": 2}}]}],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user", "content": [{"text": 5}]}],
        [[[]]],
        5,
        {"role": "tool", "content": {"a": 1}},
    ],
    ids=str,
)
async def test_a_malformed_message_fails_its_call_alone(serve: Serve, history: Any) -> None:
    """The whole session was closed, with every call that had nothing to do with it."""
    server = await serve()
    session = await server.session()
    await server.http.put(f"/v1/session/{session}/variable/h", json={"value": history})
    chat = [{"input": "h"}, {"role": "assistant", "content": [{"output": "o"}]}]
    await server.submit(
        session,
        call("bad", chat, h="h", o={"in_out": "out", "semantic_var_id": "o"}),
        call("good", "fine{{output:p}}", p="p"),
    )
    answer = await server.get(session, "o")
    assert answer.status_code in (200, 400, 422)
    if answer.status_code != 200:
        assert answer.json()["error"]["call"] == "bad"
    assert (await server.get(session, "p")).json()["value"] == "fine"


async def test_every_route_at_the_boundary_of_json(serve: Serve) -> None:
    """Bodies that are no JSON, no object, too deep or of the wrong type, for each route."""
    server = await serve(NullConfig(), ServerConfig())
    document = server.app.openapi()
    bodies = [
        b"", b"{", b"null", b"5", b"[]", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a":NaN}',
        b'{"a":1e999}', b'{"a":1,"a":2}', b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"a":' + b"9" * 5000 + b"}", b'{"value":' + b"9" * 5000 + b"}", b'{"value":"\\ud800"}',
        b'{"value":"\\u0000"}',
    ]  # fmt: skip
    ids = ["x", "s_00000000_" + "0" * 32, "..", "%00", "%2e%2e", "a" * 5000, "\N{SNOWMAN}"]
    # It reads no body and no id, and its answer ends with the server.
    endless = {"/v1/engines/follow"}
    assert endless < document["paths"].keys()
    for path, methods in document["paths"].items():
        for method in methods if path not in endless else ():
            for id in ids:
                where = path
                for name in ("session_id", "variable", "call_id"):
                    where = where.replace(f"{{{name}}}", id)
                for body in bodies if id == "x" else bodies[:3]:
                    answer = await server.http.request(method.upper(), where, content=body)
                    assert answer.status_code < 500 or path == "/health/ready", (path, body[:40])


@pytest.mark.usefixtures("uncollected")
async def test_an_each_of_ten_thousand_items(serve: Serve) -> None:
    """The longest list that an `each` may have: each item is a call of the graph, so it takes a few
    seconds. The results come in order, and a list with one item more is refused.
    """
    server = await serve()
    items = [f"item {number}" for number in range(10_000)]
    ask = call("ask", "<{{input:item}}>{{output:answer}}", item="item", answer="answer")
    body = {"calls": [ask]}
    whole = each(items, body, {"answer": "all"}, max_items=10_000)
    assert (await run(server, whole, get=["all"]))["values"]["all"] == [f"<{i}>" for i in items]
    longer = each([*items, "more"], body, {"answer": "all"}, max_items=10_000, name="long")
    error = (await run(server, longer, get=["all"]))["error"]
    assert (error["type"], error["call"]) == ("InvalidRequest", "long")
    assert error["message"] == "the list has 10,001 items, and max_items is 10,000"
