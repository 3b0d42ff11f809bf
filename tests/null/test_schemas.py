"""JSON schemas of answers and tools: how long they may be, and references that name nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Serve
from weftline.contract.constraints import MAX_SCHEMA_CHARS, check_constraint
from weftline.contract.errors import InvalidRequest
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig

HI = {"messages": [{"role": "user", "content": "hi"}]}
ANY = NullConfig(mode=NullMode.SCRIPT, script=(("", "{}"),))  # it stands for one that can
CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}}
SAYS = "the $ref '#/$defs/City' names nothing in the schema: define it, or correct the name"


def long(chars: int) -> dict[str, Any]:
    return {"type": "object", "description": "a" * chars}


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def tool(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


async def test_a_schema_may_be_as_long_as_a_context(serve: Serve) -> None:
    """The schema of an answer does not stand in the prompt. It may have four characters for each
    token of the context, as about a text that fills the context has."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=ANY.script, context_limit=20_000))
    body = {**HI, "max_tokens": 8, "response_format": format_of(long(79_000))}
    assert (await server.http.post("/v1/chat/completions", json=body)).status_code == 200
    body["response_format"] = format_of(long(81_000))
    answer = await server.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "response_format")
    assert error["message"] == (
        "the schema has 81,037 characters, and beside a context of 20,000 tokens it may have "
        "80,000: shorten it"
    )


async def test_a_small_context_does_not_bound_an_ordinary_schema(serve: Serve) -> None:
    """65,536 characters are compiled in no time, whatever the context."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=ANY.script, context_limit=512))
    body = {**HI, "max_tokens": 8, "response_format": format_of(long(60_000))}
    assert (await server.http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_schema_has_a_bound_beside_any_context(serve: Serve) -> None:
    """Compiling a longer one would take more than two seconds."""
    server = await serve(ANY)
    for chars, status in ((MAX_SCHEMA_CHARS - 100, 200), (MAX_SCHEMA_CHARS, 400)):
        body = {**HI, "response_format": format_of(long(chars))}
        answer = await server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == status


async def test_the_schema_of_a_tool_is_bounded_by_the_context(serve: Serve) -> None:
    """It is a part of the prompt, so the prompt is too long or it is not."""
    for limit, status in ((1 << 20, 200), (20_000, 400)):
        server = await serve(NullConfig(context_limit=limit), ServerConfig())
        body = {**HI, "tools": [tool(long(100_000))]}
        answer = await server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert answer.json()["error"]["type"] == "ContextTooLong"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": format_of(CITY)}, "response_format"),
        ({"guided_json": CITY}, "guided_json"),
        ({"tools": [tool(CITY, strict=True)]}, "tools"),
        ({"tools": [tool(CITY)], "tool_choice": "required"}, "tools"),
        (
            {
                "tools": [tool(CITY)],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            "tools",
        ),
    ],
)
async def test_a_reference_that_names_nothing(
    more: dict[str, Any], param: str, serve: Serve
) -> None:
    """The answer could not be held to the schema. The error names the reference."""
    server = await serve(ANY)
    answer = await server.http.post("/v1/chat/completions", json={**HI, **more})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param}: {SAYS}"


async def test_a_tool_that_nobody_forces_may_be_careless(serve: Serve) -> None:
    """Its schema only describes the tool to the model, as servers of tools publish it."""
    server = await serve(ANY)
    answer = await server.http.post("/v1/chat/completions", json={**HI, "tools": [tool(CITY)]})
    assert answer.status_code == 200


WHOLE: list[dict[str, Any]] = [
    {**CITY, "$defs": {"City": {"type": "string"}}},
    {"properties": {"next": {"$ref": "#"}}},
    {"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}},
    {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {}}},
    {"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}},
    {"$ref": "#/anyOf/1", "anyOf": [{}, {}]},
    {"$ref": "#city", "$defs": {"City": {"$anchor": "city"}}},
    {"properties": {"$ref": {"type": "string"}}, "default": {"$ref": "#/nothing"}},
    {"$ref": "http://example.com/city.json"},
    {"$id": "http://example.com/x", "$ref": "#/nothing"},
]


@pytest.mark.parametrize("schema", WHOLE)
def test_a_reference_that_may_be_right(schema: dict[str, Any]) -> None:
    """It names a place in the schema, or in another document, which the engine judges."""
    check_constraint({"json_schema": schema})


@pytest.mark.parametrize(
    "reference", ["#/", "#/$defs", "#/anyOf/2", "#/anyOf/x", "#nowhere", "#/type/x", "#/$defs/%"]
)
def test_a_reference_that_cannot_be_right(reference: str) -> None:
    """Each names no place."""
    with pytest.raises(InvalidRequest, match="names nothing in the schema"):
        check_constraint({"json_schema": {"type": "object", "anyOf": [{}, {}], "$ref": reference}})
