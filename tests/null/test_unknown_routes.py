"""A request for a route that this server does not have is told what to ask for instead."""

from __future__ import annotations

import httpx2
import pytest
from starlette.routing import Route

from tests.null.asgi import Serve
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.guard import LoopbackOnly
from weftline_server.http.unknown_routes import instead_of

ROUTES = [
    ("POST", "/api/chat", "use POST /v1/chat/completions"),
    ("POST", "/api/generate", "use POST /v1/completions"),
    ("POST", "/api/embed", "use POST /v1/embeddings"),
    ("GET", "/api/tags", "use GET /v1/models"),
    ("GET", "/api/version", "use GET /version"),
    ("POST", "/v1/audio/transcriptions", "send it to POST /v1/chat/completions"),
    ("POST", "/v1/audio/speech", "send it to POST /v1/chat/completions"),
    ("POST", "/v1/images/generations", "send it to POST /v1/chat/completions"),
    ("DELETE", "/v1/files/file_1", "send its text to POST /v1/chat/completions"),
    ("POST", "/v1beta/models/m:generateContent", "use POST /v1/chat/completions"),
    ("POST", "/openai/deployments/m/chat/completions", "use POST /v1/chat/completions"),
    ("POST", "/completion", "use POST /v1/completions"),
    ("POST", "/chat/completions", "use /v1/chat/completions, with a base URL that ends with /v1"),
    ("POST", "/v1/v1/chat/completions",
     "use /v1/chat/completions, with a base URL that ends with /v1"),
    ("GET", "/models", "use /v1/models, with a base URL that ends with /v1"),
    ("POST", "/v1/tokenize", "use /tokenize"),
    ("PATCH", "/nonsense", "GET /docs lists the routes"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "says"), ROUTES, ids=[path for _, path, _ in ROUTES])
async def test_a_route_of_another_server(method: str, path: str, says: str, serve: Serve) -> None:
    """The answer is a 404 of JSON that names the route to use."""
    server = await serve()
    answer = await server.http.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404, "path")
    assert error["message"].startswith(f"there is no route {path!r}: ")
    assert error["message"].endswith(says)


async def test_a_recording_that_is_sent_to_a_server_without_keys(serve: Serve) -> None:
    """Its guard refuses forms, which pages of other sites may send. This body is never read, so
    the client learns that audio is not served. A form to a route of ours stays refused."""
    server = await serve()
    guarded = httpx2.ASGITransport(LoopbackOnly(server.app, "127.0.0.1"))
    files = {"file": ("speech.wav", b"RIFF", "audio/wav")}
    async with httpx2.AsyncClient(transport=guarded, base_url="http://127.0.0.1") as client:
        answer = await client.post("/v1/audio/transcriptions", files=files)
        assert answer.status_code == 404
        assert "only text is read and written" in answer.json()["error"]["message"]
        for path in ("/v1/session", "/v1/responses", "/v1/chat/completions"):
            assert (await client.post(path, files=files)).status_code == 403


def test_no_row_is_of_a_route_that_is_served() -> None:
    """The guard lets any body pass to the paths of the table, since nothing is done there."""
    paths = [one.path for one in create_app(ServerConfig(), {}).router.routes
             if isinstance(one, Route)]  # fmt: skip
    assert len(paths) > 30
    assert [path for path in paths if instead_of(path) is not None] == []


@pytest.mark.parametrize(
    ("method", "path", "methods"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PATCH", "/v1/session/s_1/variable/a", "DELETE, GET, PUT"),
    ],
)
async def test_a_method_that_a_route_does_not_take(
    method: str, path: str, methods: str, serve: Serve
) -> None:
    """The answer names all methods of the path, also where several routes share it."""
    server = await serve()
    answer = await server.http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert answer.json()["error"]["message"] == f"{path!r} takes no {method}: use {methods}"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")]
)
async def test_the_probes_of_other_servers(method: str, path: str, serve: Serve) -> None:
    """They answer as /health/ready does: 200, and 503 once the server drains. They need no key."""
    server = await serve(config=ServerConfig(keys={"k": "t"}))
    ready = await server.http.request(method, path)
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    server.service.lifecycle.draining = True
    draining = await server.http.request(method, path)
    assert (draining.status_code, draining.json()["status"]) == (503, "draining")


async def test_the_version(serve: Serve) -> None:
    """vLLM's clients ask for it here. Where the server has keys, one is needed."""
    server = await serve(config=ServerConfig(keys={"k": "t"}))
    assert (await server.http.get("/version")).status_code == 401
    found = await server.http.get("/version", headers={"Authorization": "Bearer k"})
    assert list(found.json()) == ["version"]
