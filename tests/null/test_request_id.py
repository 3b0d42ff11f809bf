"""Each request has an id, and a page of another origin may be let in."""

from __future__ import annotations

import json
import logging
import re

import pytest

from tests.null.asgi import Serve, call
from weftline.errors import InvalidRequest
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig
from weftline_server.http.guard import LoopbackOnly
from weftline_server.observe.logs import JsonFormatter, TextFormatter

PAGE = "https://app.example.com"


async def test_an_id_is_returned_or_made(serve: Serve) -> None:
    """A plain id comes back. One that could forge a line of a log is replaced."""
    server = await serve()
    for path in ("/v1/models", "/health/live", "/no/such", "/v1/session/x/graph"):
        answer = await server.http.get(path, headers={"x-request-id": "a.b:c-1"})
        assert answer.headers.get_list("x-request-id") == ["a.b:c-1"], path
    for bad in ("a b", 'x" onload', "x" * 129, ""):
        made = (await server.http.get("/v1/models", headers={"x-request-id": bad})).headers
        assert re.fullmatch("[0-9a-f]{32}", made["x-request-id"])


async def test_the_log_line_of_a_call_names_its_request(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The id is that of the submit, not that of the get which waits for the call."""
    caplog.set_level(logging.INFO, "weftline.calls")
    server = await serve()
    session = await server.session()
    body = {"session_id": session, "calls": [call("c", "one{{output:x}}", x="x")]}
    await server.http.post("/v1/submit", json=body, headers={"x-request-id": "submit-1"})
    await server.get(session, "x")
    [record] = [one for one in caplog.records if one.name == "weftline.calls"]
    assert json.loads(JsonFormatter().format(record))["request"] == "submit-1"
    text = TextFormatter().format(record)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO weftline.calls: call done ", text)
    assert 'request="submit-1"' in text


async def test_a_page_of_a_named_origin_is_let_in(serve: Serve) -> None:
    """A browser asks first, without the key. Another origin gets no permission."""
    server = await serve(NullConfig(), ServerConfig(cors=(PAGE,), keys={"k": "ada"}))
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    allowed = await server.http.options("/v1/submit", headers={"Origin": PAGE, **ask})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    other = await server.http.options("/v1/submit", headers={"Origin": "https://evil.test", **ask})
    assert "access-control-allow-origin" not in other.headers
    real = await server.http.get(
        "/v1/models", headers={"Origin": PAGE, "Authorization": "Bearer k"}
    )
    assert real.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in real.headers["access-control-expose-headers"]
    refused = await server.http.get("/v1/models", headers={"Origin": PAGE})
    assert refused.status_code == 401


def test_the_guard_of_a_server_without_keys_knows_the_origins() -> None:
    """The same page is let in, another one is not."""
    guard = LoopbackOnly(lambda *_: None, "127.0.0.1", (PAGE,))  # type: ignore[arg-type]
    host = {b"host": b"127.0.0.1:8600"}
    guard._check({**host, b"origin": PAGE.encode()}, "/")
    with pytest.raises(Exception, match="web page of another site"):
        guard._check({**host, b"origin": b"https://evil.test"}, "/")


def test_origins_are_checked_at_the_start() -> None:
    """Without keys a wildcard would open the server to every page. With keys it may."""
    with pytest.raises(InvalidRequest, match="would let every web page"):
        ServerConfig(cors=("*",))
    with pytest.raises(InvalidRequest, match="is no origin"):
        ServerConfig(cors=("app.example.com/",))
    assert ServerConfig(cors=("*",), keys={"k": "a"}).cors == ("*",)
