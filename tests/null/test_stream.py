"""Server-sent events of a variable: ids to resume from, and its value or its error at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call

TEXT = "one twö three"


async def made(serve: Serve, **output: Any) -> tuple[Server, str]:
    """A server, and a session whose variable x is ready or has failed."""
    server = await serve()
    session = await server.session()
    out = {"in_out": "out", "semantic_var_id": "x", **output}
    await server.submit(session, call("say", TEXT + "{{output:x}}", x=out))
    await server.get(session, "x")
    return server, session


async def events(server: Server, session: str, **headers: str) -> list[tuple[str, str, Any]]:
    """Return (event, id, data) of each event of a stream of x."""
    body = {"session_id": session, "semantic_var_id": "x"}
    headers["Accept"] = "text/event-stream"
    answer = await server.http.post("/v1/get", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.replace("\r", "").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


async def test_ids_resume_a_stream(serve: Serve) -> None:
    """Ids count characters, so a client that was cut off anywhere gets the rest."""
    server, session = await made(serve)
    end = str(len(TEXT))
    whole = await events(server, session)
    assert whole == [("part", end, {"offset": 0, "text": TEXT}), ("value", end, {"value": TEXT})]
    for seen in range(len(TEXT)):
        rest = await events(server, session, **{"Last-Event-ID": str(seen)})
        assert rest[0] == ("part", end, {"offset": seen, "text": TEXT[seen:]})
    assert await events(server, session, **{"Last-Event-ID": end}) == whole[1:]


async def test_the_value_is_the_transforms_result(serve: Serve) -> None:
    """The parts are the text as generated; the value is transformed."""
    server, session = await made(serve, transforms=[{"op": "line_list"}])
    said = await events(server, session)
    assert [(event, data) for event, _, data in said] == [
        ("part", {"offset": 0, "text": TEXT}),
        ("value", {"value": [TEXT]}),
    ]


async def test_a_failure_is_an_event_that_names_its_call(serve: Serve) -> None:
    """The text is sent first, then the error, because a stream's status cannot change any more."""
    server, session = await made(serve, transforms=[{"op": "json"}])
    part, (event, _, data) = await events(server, session)
    assert part[0] == "part" and event == "error"
    assert (data["error"]["type"], data["error"]["call"]) == ("TransformFailed", "say")


@pytest.mark.parametrize("id", ["-1", "x", "1.2.5", ".5.", "9" * 13, "\u00b2"])
async def test_an_invalid_last_event_id(serve: Serve, id: str) -> None:
    """A superscript digit is Latin-1 and so may be in a header, but it is not a number."""
    server, session = await made(serve)
    body = {"session_id": session, "semantic_var_id": "x", "stream": True}
    headers = {b"Last-Event-ID": id.encode("latin-1")}
    answer = await server.http.post("/v1/get", json=body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize(("variable", "status"), [("nope", 404), ("topic", 409)])
async def test_an_impossible_stream_is_an_error_status(
    serve: Serve, variable: str, status: int
) -> None:
    """An unknown variable, or one without a producer, is an error before the stream begins."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("wait", "{{input:t}}{{output:x}}", t="topic", x="x"))
    body = {"session_id": session, "semantic_var_id": variable, "stream": True}
    answer = await server.http.post("/v1/get", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == variable
