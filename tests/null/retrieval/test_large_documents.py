"""Documents that are too large for a request or for an embedder: refused, with nothing stored."""

from __future__ import annotations

from typing import Any

from tests.null.asgi import Serve
from tests.null.retrieval.test_steps import engines
from tests.null.steps.wire import run


def added(text: str) -> list[dict[str, Any]]:
    """The steps that embed a text and store it."""
    return [
        {"kind": "embed", "in": {"value": ["small", text]}, "out": "v"},
        {"kind": "ingest", "in": {"var": "v"}, "store": "docs", "out": "indexed"},
    ]


async def test_a_document_of_ten_megabytes(serve: Serve) -> None:
    """It does not fit in a request, and a tenth of it and one character not in the embedder."""
    server = await serve(also=engines())
    body = {"calls": [], "steps": added("x" * 10_000_000), "get": ["indexed"], "close": True}
    refused = await server.http.post("/v1/submit", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (413, "BodyTooLarge")
    assert error["message"] == "the body is larger than 8388608 bytes"
    long = await run(server, *added("x" * 1_000_001), get=["indexed"])
    assert long["error"]["type"] == "InvalidRequest"
    assert "a text has more than 1000000 characters: split it first" in long["error"]["message"]
    kept = {"kind": "embed", "in": {"value": ["small"]}, "out": "q"}
    search = {"kind": "search", "in": {"var": "q"}, "store": "docs", "k": 9, "out": "hits"}
    assert (await run(server, kept, search, get=["hits"]))["values"]["hits"] == [[]]
