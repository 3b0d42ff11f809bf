"""A request's body may come in gzip. What it expands to is bounded as any other body is."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, Server, call
from weftline_server.config import ServerConfig

MOST = 20_000
BODY = {"messages": [{"role": "user", "content": "one two three"}]}
PLAIN = json.dumps(BODY).encode()


async def send(server: Server, content: bytes, encoding: str = "gzip") -> httpx2.Response:
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    return await server.http.post("/v1/chat/completions", content=content, headers=headers)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
async def test_a_body_in_gzip_is_read(encoding: str, serve: Serve) -> None:
    """The answer is that of the same body without an encoding."""
    server = await serve()
    plain = (await send(server, PLAIN, "identity")).json()
    packed = (await send(server, gzip.compress(PLAIN), encoding)).json()
    assert packed["choices"] == plain["choices"]


async def test_a_small_body_that_expands_to_a_large_one(serve: Serve) -> None:
    """It is refused at the limit of plain bodies. 8 MiB of blanks are 8 KiB in gzip."""
    server = await serve(config=ServerConfig(max_body=MOST))
    fits = PLAIN + b" " * (MOST - len(PLAIN))
    assert (await send(server, gzip.compress(fits))).status_code == 200
    for size in (MOST + 1, 8 << 20):
        answer = await send(server, gzip.compress(b" " * size))
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (413, "BodyTooLarge", "body")


async def test_values_in_a_packed_body_are_counted(serve: Serve) -> None:
    """A million empty lists hold the parser for long, and are a few KiB in gzip."""
    server = await serve()
    answer = await send(server, gzip.compress(b"[" + b"[]," * 500_000 + b"1]"))
    assert answer.status_code == 400
    assert "more than 400,000 lists and objects" in answer.json()["error"]["message"]


CUT = "the body is not one whole gzip stream: it is cut off, or goes on after its end"
WRONG: list[tuple[bytes, str, str]] = [
    (PLAIN, "gzip", "the body is not gzip: "),
    (gzip.compress(PLAIN)[:-9], "gzip", CUT),
    (gzip.compress(PLAIN) + b"more", "gzip", CUT),
    (b"", "gzip", CUT),
    (PLAIN, "br", "a body in the encoding 'br' is not read: send it in gzip or without"),
    (PLAIN, "gzip, gzip", "a body in the encoding 'gzip, gzip' is not read"),
]


@pytest.mark.parametrize(("content", "encoding", "says"), WRONG, ids=range(len(WRONG)))
async def test_what_is_no_gzip(content: bytes, encoding: str, says: str, serve: Serve) -> None:
    """Each is a 400 that says what is wrong."""
    server = await serve()
    answer = await send(server, content, encoding)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(says)


async def test_a_packed_body_under_an_idempotency_key(serve: Serve) -> None:
    """The same bytes again give the same response, which runs once."""
    server = await serve()
    headers: dict[str, Any] = {"Content-Encoding": "gzip", "Idempotency-Key": "k"}
    calls = [call("a", "hi{{output:o}}", o="o")]
    content = gzip.compress(json.dumps({"calls": calls, "get": ["o"], "close": True}).encode())
    first, again = [
        await server.http.post("/v1/submit", content=content, headers=headers) for _ in range(2)
    ]
    assert first.json()["values"] == {"o": "hi"} and first.text == again.text
    assert again.headers["idempotency-replayed"] == "true"
