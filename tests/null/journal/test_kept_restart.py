"""Responses and conversations in a file: what the next run of a server finds and goes on with."""

from __future__ import annotations

from pathlib import Path

from tests.null.journal.test_restart import cut, running
from tests.null.kept import ended, events_of, got, refused, respond, said, text_of
from tests.null.test_background_responses import running as in_background
from tests.waits import until
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.http.openai.response_record import NUMBERS

NEVER = NullConfig(latency=LatencyProfile(step_s=3600.0))
GO = "user: Go\nassistant: "


async def test_what_an_earlier_run_kept(tmp_path: Path) -> None:
    """A response goes on, and a conversation has its items."""
    async with running(tmp_path / "store") as server:
        first = await respond(server, "Go")
        talk = (await server.http.post("/v1/conversations", json={})).json()["id"]
        await respond(server, "Go", conversation=talk)
    async with running(tmp_path / "store") as server:
        assert await got(server, f"/v1/responses/{first['id']}") == first
        second = await respond(server, "On", previous_response_id=first["id"])
        assert text_of(second) == f"user: Go\nassistant: {GO}\nuser: On\nassistant: "
        items = (await got(server, f"/v1/conversations/{talk}/items?order=asc"))["data"]
        assert said(items) == ["user: Go", f"assistant: {GO}"]


async def test_one_in_the_background_is_made_by_the_next_run(tmp_path: Path) -> None:
    """The first run ends while it runs, as a kill would. The next one generates the whole answer,
    with the same ids. A client that goes on behind the last event it saw misses none of it: their
    numbers are higher."""
    async with running(tmp_path / "store", NEVER) as server:
        begun = await respond(server, "Go", background=True, metadata={"a": "b"})
        await until(lambda: in_background(server, begun["id"]).size)  # an event was told
        await cut(server)
    path = f"/v1/responses/{begun['id']}"
    async with running(tmp_path / "store") as server:
        text = (await server.http.get(f"{path}?stream=true&starting_after=2")).text
        made = await ended(server, begun["id"])
        rest = (await server.http.get(f"{path}?stream=true&starting_after={NUMBERS + 8}")).text
    assert events_of(text)[-1]["response"] == made
    numbers = [one["sequence_number"] for one in events_of(text)]
    assert numbers == list(range(NUMBERS, NUMBERS + 10))
    assert events_of(rest) == events_of(text)[-1:]
    assert text_of(made) == GO
    grown = ("status", "output", "usage")
    assert {**made, **{name: begun[name] for name in grown}} == begun
    assert made["output"][0]["id"] == f"msg_{begun['id'][5:]}0000"
    async with running(tmp_path / "store") as server:
        assert await got(server, path) == made


async def test_an_orderly_end(tmp_path: Path) -> None:
    """It does not end a response in the background: the next run makes it."""
    async with running(tmp_path / "store", NEVER) as server:
        begun = await respond(server, "Go", background=True)
        made = in_background(server, begun["id"])
        await until(lambda: made.size and server.service.registry.busy())
        await server.service.lifecycle.drain(0.0)
        await made.wait()
    async with running(tmp_path / "store") as server:
        assert text_of(await ended(server, begun["id"])) == GO


async def test_one_that_ended_unseen(tmp_path: Path) -> None:
    """Its call had ended in the next run before a client asked: the first answer is whole."""
    async with running(tmp_path / "store", NEVER) as server:
        begun = await respond(server, "Go", background=True)
        await cut(server)
    async with running(tmp_path / "store") as server:
        [session] = server.service.registry
        await until(lambda: not session.execution.work_left)
        made = await got(server, f"/v1/responses/{begun['id']}")
        assert (made["status"], text_of(made)) == ("completed", GO)
        [row] = (await got(server, "/v1/sessions"))["sessions"]
        assert row["state"] == "closed"


async def test_one_is_cancelled_by_the_next_run(tmp_path: Path) -> None:
    """Also the next run has not made it yet."""
    async with running(tmp_path / "store", NEVER) as server:
        begun = await respond(server, "Go", background=True)
        await cut(server)
    async with running(tmp_path / "store", NEVER) as server:
        made = (await server.http.post(f"/v1/responses/{begun['id']}/cancel")).json()
        assert made == {**begun, "status": "cancelled"}


async def test_one_whose_session_is_gone(tmp_path: Path) -> None:
    """It has failed, and says what to do."""
    async with running(tmp_path / "store", NEVER) as server:
        begun = await respond(server, "Go", background=True)
        [row] = (await got(server, "/v1/sessions"))["sessions"]
        await cut(server)
    path = f"/v1/responses/{begun['id']}"
    async with running(tmp_path / "store", NEVER) as server:
        server.service.close(server.service.registry.find("local", row["session_id"]))
        server.service.registry.expire(1e12)
        made = await got(server, path)
        assert (made["status"], made["error"]["code"]) == ("failed", "server_error")
        assert "send its request again" in made["error"]["message"]
        assert await got(server, path) == made
        wrong = await refused(server, "GET", f"{path}?stream=true")
        assert wrong == (400, "InvalidRequest", "stream")
