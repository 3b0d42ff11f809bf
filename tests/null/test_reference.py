"""The description of the HTTP interface is complete, agrees with the answers, and makes a page."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weftline
from tests.null.asgi import Serve, Server
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.reference.fields import FIELDS
from weftline_server.http.reference.meanings import MEANINGS
from weftline_server.http.reference.routes import ANSWERS, REQUESTS

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT = create_app(ServerConfig(), {}).openapi()


def properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of a schema and of the schemas in it."""
    if isinstance(schema, list):
        for one in schema:
            yield from properties(one)
    elif isinstance(schema, dict):
        for name, value in schema.items():
            if name == "properties":
                yield from value.items()
            if name not in ("examples", "example"):
                yield from properties(value)


def operations() -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield (method.upper(), path), operation


def test_every_field_has_a_sentence_and_an_example() -> None:
    """Also the fields of answers and of errors."""
    seen = [*properties(DOCUMENT["paths"]), *properties(DOCUMENT["components"])]
    assert len(seen) > 300
    for name, field in seen:
        assert field["description"].endswith("."), name
        assert len(field["examples"]) == 1, name


def test_no_entry_is_of_a_field_that_is_gone() -> None:
    """Each entry of the tables is used by some type."""
    names = {name for name, _ in properties(DOCUMENT)}
    assert {one.rpartition(".")[2] for one in FIELDS} <= names
    assert set(MEANINGS) <= names
    kinds = set(DOCUMENT["components"]["schemas"])
    kinds |= {o["requestBody"]["content"]["application/json"]["schema"]["title"]
              for _, o in operations() if "requestBody" in o}  # fmt: skip
    assert {one.partition(".")[0] for one in FIELDS if "." in one} <= kinds


def test_every_route_declares_its_key_its_statuses_and_its_bodies() -> None:
    """Only the probes need no key. A route that takes a body shows a whole request."""
    open_routes = {route for route, one in operations() if "security" not in one}
    assert open_routes == {("GET", "/health/live"), ("GET", "/health/ready")}
    assert {route for route, _ in operations()} == set(ANSWERS)
    assert {route for route, one in operations() if "requestBody" in one} == set(REQUESTS)
    for route, operation in operations():
        for status, response in operation["responses"].items():
            assert response["content"], (route, status)
        if route not in open_routes:
            assert {"200", "401", "403", "429"} <= set(operation["responses"]), route
    ids = [operation["operationId"] for _, operation in operations()]
    assert len(ids) == len(set(ids))


async def examples(server: Server) -> dict[tuple[str, str], Any]:
    """The answers of a server to one request for each route of JSON, by route."""
    session = await server.session()
    found: dict[tuple[str, str], Any] = {}
    given = {"{session_id}": session, "{variable}": "given", "{call_id}": "", "{model}": "null"}

    async def ask(method: str, path: str, body: Any = None) -> None:
        where = path
        for name, value in given.items():
            where = where.replace(name, value)
        answer = await server.http.request(method, where, json=body)
        assert answer.status_code == 200, (path, answer.text)
        found[method, path] = answer.json()

    # The null engine has no embedder and no tokenizer.
    skipped = ("/v1/embeddings", "/v1/rerank", "/tokenize", "/detokenize", "/metrics",
               "/v1/messages/count_tokens")  # fmt: skip
    await ask("POST", "/v1/submit", {**REQUESTS["POST", "/v1/submit"], "session_id": session,
                                     "close": False})  # fmt: skip
    given["{call_id}"] = found["POST", "/v1/submit"]["calls"][0]["call_id"]
    for route in REQUESTS:
        if route not in found and route[1] not in skipped:
            await ask(*route, {**REQUESTS[route], **({"session_id": session} if "get" in route[1]
                                                     else {})})  # fmt: skip
        if route[1] == "/v1/conversations":
            given["{conversation_id}"] = found[route]["id"]
    items = found["POST", "/v1/conversations/{conversation_id}/items"]["data"]
    given["{item_id}"] = items[0]["id"]
    body = {"input": "Name a river.", "background": True}
    begun = (await server.http.post("/v1/responses", json=body)).json()
    given["{response_id}"] = begun["id"]
    await ask("POST", "/v1/responses/{response_id}/cancel")
    given["{response_id}"] = found["POST", "/v1/responses"]["id"]
    for route, answer in ANSWERS.items():
        if route in found or route[1] in skipped or answer.types == ("text/event-stream",):
            continue
        if route == ("DELETE", "/v1/session/{session_id}"):
            continue
        await ask(*route)
    await ask("DELETE", "/v1/session/{session_id}")
    return found


def alike(told: Any, real: Any, where: str) -> None:
    """Every field of the example is in the answer and the other way round.

    A mapping whose names are ids, such as the values by variable, has names of its own.
    """
    if isinstance(told, dict) and isinstance(real, dict):
        if where.rpartition(".")[2] in ("states", "engines", "seconds"):
            return
        assert set(told) == set(real), where
        for name, value in told.items():
            alike(value, real[name], f"{where}.{name}")
    elif isinstance(told, list) and isinstance(real, list) and told and real:
        alike(told[0], real[0], where)


async def test_the_examples_are_like_the_answers(serve: Serve) -> None:
    """The null engine answers one request for each route. Its answers have the examples' fields."""
    async with asyncio.timeout(60):
        found = await examples(await serve())
    assert len(found) > 12
    for route, real in found.items():
        alike(ANSWERS[route].example, real, " ".join(route))


def generated() -> dict[str, str]:
    """The pages that the site gets from the code, by their names."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return {"http.md": reference.http(), "python.md": reference.python()}


def test_the_generated_pages_are_whole() -> None:
    """One has a section for every route, the other for every public name; neither is committed."""
    pages = generated()
    for method, path in dict(operations()):
        assert f"\n## {method} {path}\n" in pages["http.md"]
    for name in weftline.__all__:
        assert f"\n## {name}\n" in pages["python.md"]
    assert not any((DOCS / name).exists() for name in pages)


def test_links_into_the_generated_pages_hold() -> None:
    """Every `http.md#...` and `python.md#...` of docs/ is a heading there, as mkdocs names it."""
    headings = {}
    for name, text in generated().items():
        lines = re.findall(r"^#+ (.*)$", text, re.M)
        headings[name] = {re.sub(r"[^\w\s-]", "", one).strip().lower() for one in lines}
        headings[name] = {re.sub(r"[-\s]+", "-", one) for one in headings[name]}
    links = {
        link
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\((http\.md|python\.md)#([^)]+)\)", page.read_text())
    }
    assert ("http.md", "provenance") in links
    assert not [(name, heading) for name, heading in links if heading not in headings[name]]


async def test_the_page_of_the_routes_is_served_whole(serve: Serve) -> None:
    """/docs and its files come from this server, and refer to no other host."""
    server = await serve(config=ServerConfig(ui=False))
    found = await server.http.get("/docs", follow_redirects=True)
    assert found.status_code == 200 and found.url.path == "/docs/"
    for name in ("docs.html", "docs.js", "api.js", "dom.js", "style.css"):
        file = await server.http.get(f"/docs/{name}")
        assert file.status_code == 200, name
        assert "default-src 'none'" in file.headers["content-security-policy"]
        assert "http" not in file.text.replace("http://www.w3.org/2000/svg", ""), name
    assert (await server.http.get("/openapi.json")).status_code == 200
