"""Responses in the background: a client polls them, follows them, cancels them."""

from __future__ import annotations

import asyncio

import pytest

from tests.null.asgi import Serve, Server
from tests.null.kept import ended, events_of, got, refused, respond, text_of
from tests.waits import until
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.http.openai import background_events
from weftline_server.http.openai.background_events import BackgroundResponse
from weftline_server.http.state import state_of
from weftline_server.journal.kept_objects import KeptConfig

SLOW = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=0.01))
NEVER = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=3600.0))
BACK = {"background": True, "max_output_tokens": 5}


def running(server: Server, id: str) -> BackgroundResponse:
    """The response as the server has it in memory."""
    found = state_of(server.app).background.find("local", id)
    assert found is not None
    return found


async def test_a_client_polls_until_the_end(serve: Serve) -> None:
    """The request is answered before the engine begins. What is there so far is seen."""
    server = await serve(SLOW)
    begun = await respond(server, "Go", **BACK)
    assert (begun["status"], begun["output"], begun["usage"]) == ("queued", [], None)
    found = await ended(server, begun["id"])
    assert (found["status"], found["usage"]["output_tokens"]) == ("completed", 5)
    grown = ("status", "output", "usage")
    assert {**found, **{name: begun[name] for name in grown}} == begun


async def test_what_is_there_so_far(serve: Serve) -> None:
    """A response that runs has the text that was made, also when it is cancelled."""
    server = await serve(SLOW)
    begun = await respond(server, "Go", background=True, max_output_tokens=10_000)
    made = running(server, begun["id"])
    await until(lambda: text_of(made.body))
    path = f"/v1/responses/{begun['id']}"
    found = await got(server, path)
    assert (found["status"], found["output"][0]["status"]) == ("in_progress", "in_progress")
    last = (await server.http.post(f"{path}/cancel")).json()
    assert (last["status"], last["output"][0]["status"]) == ("cancelled", "incomplete")
    assert text_of(last).startswith(text_of(found)) and text_of(found)


async def test_a_stream_is_read_on(serve: Serve) -> None:
    """Each reader gets each event once, from where it asks on, also after the end."""
    server = await serve(SLOW)
    body = {"input": "Go", "stream": True, **BACK}
    events = events_of((await server.http.post("/v1/responses", json=body)).text)
    kinds = [one["type"] for one in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert kinds[-1] == "response.completed" and kinds.count("response.output_text.delta") > 1
    path = f"/v1/responses/{events[0]['response']['id']}"
    assert await got(server, path) == events[-1]["response"]
    for after in (0, 4, len(events) - 1):
        url = f"{path}?stream=true&starting_after={after}"
        assert events_of((await server.http.get(url)).text) == events[after + 1 :]
    assert events_of((await server.http.get(f"{path}?stream=true")).text) == events
    wrong = await refused(server, "GET", f"{path}?stream=true&starting_after=x")
    assert wrong == (400, "InvalidRequest", "starting_after")
    begun = await respond(server, "Go", **BACK)
    url = f"/v1/responses/{begun['id']}?stream=true&starting_after=0"
    both = await asyncio.gather(server.http.get(url), server.http.get(url))
    [one, other] = [events_of(answer.text) for answer in both]
    assert one == other and one[-1]["response"] == await ended(server, begun["id"])


async def test_events_are_kept_for_a_while(serve: Serve) -> None:
    """Later the response is there without them. Those of a response that did not run in the
    background are not kept."""
    server = await serve(SLOW, ServerConfig(kept=KeptConfig(events_s=0.0)))
    begun = await respond(server, "Go", **BACK)
    await ended(server, begun["id"])
    whole = await respond(server, "Go", max_output_tokens=1)
    for id in (begun["id"], whole["id"]):
        found = await refused(server, "GET", f"/v1/responses/{id}?stream=true")
        assert found == (400, "InvalidRequest", "stream")
    assert await got(server, f"/v1/responses/{whole['id']}") == whole


async def test_a_client_cancels(serve: Serve) -> None:
    """The call ends, its session with it, and those who follow learn of it. What has ended stays
    as it is; a response with a connection is ended by closing that."""
    server = await serve(NEVER)
    begun = await respond(server, "Go", **BACK)
    path = f"/v1/responses/{begun['id']}"
    following = asyncio.create_task(server.http.get(f"{path}?stream=true&starting_after=2"))
    body = {"input": "And?", "previous_response_id": begun["id"]}
    early = await refused(server, "POST", "/v1/responses", **body)
    assert early == (400, "InvalidRequest", "previous_response_id")
    made = (await server.http.post(f"{path}/cancel")).json()
    assert made == {**begun, "status": "cancelled"}
    assert await got(server, path) == made
    assert (await server.http.post(f"{path}/cancel")).json() == made
    [last] = events_of((await following).text)
    assert last == {"type": "response.cancelled", "response": made, "sequence_number": 3}
    [row] = (await got(server, "/v1/sessions"))["sessions"]
    assert row["states"] == {"cancelled": 1}
    quick = await serve()
    whole = await respond(quick, "Go")
    wrong = await refused(quick, "POST", f"/v1/responses/{whole['id']}/cancel")
    assert wrong == (400, "InvalidRequest", "response_id")


async def test_one_that_is_deleted_is_cancelled(serve: Serve) -> None:
    server = await serve(NEVER)
    begun = await respond(server, "Go", **BACK)
    path = f"/v1/responses/{begun['id']}"
    assert (await server.http.delete(path)).json()["deleted"] is True
    assert await refused(server, "GET", path) == (404, "UnknownResponse", "response_id")
    [row] = (await got(server, "/v1/sessions"))["sessions"]
    assert row["states"] == {"cancelled": 1}


async def test_an_engine_that_fails(serve: Serve) -> None:
    """The response has failed, with the error, and is kept so."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("never", ""),)))
    begun = await respond(server, "Go", **BACK)
    found = await ended(server, begun["id"])
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert found["error"]["type"] == "EngineFailed"


async def test_a_tenant_has_so_many(serve: Serve) -> None:
    """One more is a 429, until one has ended."""
    server = await serve(NEVER, ServerConfig(kept=KeptConfig(max_background=1)))
    begun = await respond(server, "Go", **BACK)
    more = await refused(server, "POST", "/v1/responses", input="Go", **BACK)
    assert more == (429, "Overloaded", "background")
    await server.http.post(f"/v1/responses/{begun['id']}/cancel")
    await respond(server, "Go", **BACK)


async def test_events_of_many_that_have_ended(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of bytes the oldest are forgotten."""
    server = await serve(SLOW)
    begun = [await respond(server, "Go", **BACK) for _ in range(2)]
    for one in begun:
        await ended(server, one["id"])
    size = running(server, begun[1]["id"]).size
    monkeypatch.setattr(background_events, "MOST_BYTES", size)
    paths = [f"/v1/responses/{one['id']}?stream=true" for one in begun]
    found = [(await server.http.get(path)).status_code for path in paths]
    assert found == [400, 200]


async def test_one_that_has_made_room(serve: Serve) -> None:
    """The bounds of its tenant took it while it ran. It does not come back."""
    server = await serve(NEVER, ServerConfig(kept=KeptConfig(max_objects=1)))
    begun = await respond(server, "Go", **BACK)
    talk = (await server.http.post("/v1/conversations", json={})).json()
    await running(server, begun["id"]).cancel()
    assert await got(server, f"/v1/conversations/{talk['id']}") == talk
    gone = await refused(server, "GET", f"/v1/responses/{begun['id']}")
    assert gone == (404, "UnknownResponse", "response_id")
