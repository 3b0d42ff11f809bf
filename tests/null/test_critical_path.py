"""The critical path of a session, and what its seconds were spent on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.observe.critical import critical_path, critical_view
from weftline_server.observe.follower import MOST, Follower
from weftline_server.session.session import ServerSession

TENANT = "local"
TOKENS = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=0.002))


def output(variable: str, tokens: int) -> dict[str, Any]:
    sampling = {"max_tokens": tokens}
    return {"in_out": "out", "semantic_var_id": variable, "sampling": sampling}


async def fork(server: Server) -> ServerSession:
    """A long and a short call feed a third one, and a fourth is beside them."""
    id = await server.session()
    await server.submit(
        id,
        call("long", "Write {{output:a}}", a=output("a", 40)),
        call("short", "Write {{output:b}}", b=output("b", 4)),
        call("join", "{{input:a}} {{input:b}} {{output:c}}", a="a", b="b", c=output("c", 4)),
        call("beside", "Write {{output:d}}", d=output("d", 2)),
    )
    for variable in "cd":
        assert (await server.get(id, variable)).status_code == 200
    return server.service.registry.find(TENANT, id)


async def test_the_path_goes_through_the_slower_input(serve: Serve) -> None:
    """The short call and the one beside the others are not on it."""
    session = await fork(await serve(TOKENS))
    parts = critical_path(session)
    assert [part.name for part in parts] == ["long", "join"]
    view = critical_view(session)
    assert view["tasks"] == [part.task for part in parts]
    assert max(view["seconds"], key=view["seconds"].__getitem__) == "generate"
    assert "of the time was generating text; shortening 'long' helps most" in view["sentence"]


async def test_the_seconds_of_the_path_are_those_of_the_run(serve: Serve) -> None:
    """From the session's opening to the last task's end nothing is left out or counted twice."""
    session = await fork(await serve(TOKENS))
    last = session.tasks[critical_path(session)[-1].task].steps[-1].finished
    assert last is not None
    spent = sum(sum(part.seconds.values()) for part in critical_path(session))
    assert spent == pytest.approx(last - session.opened, rel=0.02)


async def test_a_value_that_the_client_sets_late_is_a_wait_for_the_client(serve: Serve) -> None:
    """The call was submitted at once, and could not start before."""
    server = await serve()
    id = await server.session()
    await server.submit(id, call("reply", "{{input:q}} {{output:x}}", q="q", x="x"))
    await asyncio.sleep(0.1)
    await server.http.put(f"/v1/session/{id}/variable/q", json={"value": "why?"})
    assert (await server.get(id, "x")).status_code == 200
    view = critical_view(server.service.registry.find(TENANT, id))
    assert view["seconds"]["client"] >= 0.1
    assert "waiting for the client" in view["sentence"]


async def test_a_session_in_which_nothing_has_ended(serve: Serve) -> None:
    """The view is empty, and says so in its sentence."""
    server = await serve()
    id = await server.session()
    await server.submit(id, call("reply", "{{input:q}} {{output:x}}", q="q", x="x"))
    view = critical_view(server.service.registry.find(TENANT, id))
    assert view == {"tasks": [], "seconds": {}, "sentence": "nothing has ended yet"}


async def test_a_follower_is_told_each_change_once(serve: Serve) -> None:
    """At first everything, then what has changed, and the end of the session at last."""
    server = await serve()
    id = await server.session()
    await server.submit(id, call("reply", "{{input:q}} {{output:x}}", q="q", x="x"))
    session = server.service.registry.find(TENANT, id)
    follower = Follower(session)
    first = list(follower.changes(time.monotonic()))
    assert [[task["state"] for task in one["tasks"]] for one in first if "tasks" in one] == [
        ["waiting"]
    ]
    fields = [["tasks", "now_s"], ["edges"], ["critical"], ["glance", "now_s"]]
    assert [list(one) for one in first] == fields
    assert list(follower.changes(time.monotonic())) == []
    await server.http.put(f"/v1/session/{id}/variable/q", json={"value": "why?"})
    assert (await server.get(id, "x")).status_code == 200
    second = list(follower.changes(time.monotonic()))
    assert [task["state"] for task in second[0]["tasks"]] == ["done"]
    assert (list(follower.changes(time.monotonic())), follower.is_over) == ([], False)
    server.service.close(session)
    glance, end = follower.changes(time.monotonic())
    assert (glance["glance"]["phase"], list(end), follower.is_over) == ("done", ["ended_s"], True)


async def test_a_task_that_ends_while_it_is_told_is_told_again(serve: Serve) -> None:
    """The session goes on while a message is sent. The next look tells what has ended meanwhile."""
    server = await serve()
    id = await server.session()
    await server.submit(id, call("reply", "{{input:q}} {{output:x}}", q="q", x="x"))
    follower = Follower(server.service.registry.find(TENANT, id))
    changes = follower.changes(time.monotonic())
    assert [task["state"] for task in next(changes)["tasks"]] == ["waiting"]
    await server.http.put(f"/v1/session/{id}/variable/q", json={"value": "why?"})
    assert (await server.get(id, "x")).status_code == 200
    list(changes)
    told = list(follower.changes(time.monotonic()))
    assert [task["state"] for one in told for task in one.get("tasks", ())] == ["done"]


async def test_a_large_session_is_told_in_pieces(serve: Serve) -> None:
    """No message holds more tasks than can be written in one turn of the event loop."""
    server = await serve()
    id = await server.session()
    count = 2 * MOST + 1
    await server.submit(
        id, *(call(f"c{n}", "{{input:q}} {{output:x}}", q="q", x=f"x{n}") for n in range(count))
    )
    told = list(Follower(server.service.registry.find(TENANT, id)).changes(time.monotonic()))
    assert [len(one["tasks"]) for one in told if "tasks" in one] == [MOST, MOST, 1]


async def test_a_call_shows_its_prompt_and_its_values(serve: Serve) -> None:
    """Each segment says what it is, and where its text comes from."""
    server = await serve()
    id = await server.session()
    await server.http.put(f"/v1/session/{id}/variable/q", json={"value": {"why": 1}})
    submitted = (
        await server.submit(id, call("reply", "Say {{input:q}}: {{output:x}}", q="q", x="x"))
    ).json()
    value = (await server.get(id, "x")).json()["value"]
    path = f"/v1/session/{id}/call/{submitted['calls'][0]['call_id']}"
    segments = (await server.http.get(path)).json()["segments"]
    assert [(s["kind"], s["semantic_var_id"], s["text"]) for s in segments] == [
        ("constant", None, "Say "),
        ("input", "q", '{"why": 1}'),
        ("constant", None, ": "),
        ("output", "x", value),
    ]
    missing = await server.http.get(f"/v1/session/{id}/call/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "UnknownCall")


async def test_the_page_is_served_with_a_strict_policy(serve: Serve) -> None:
    """Scripts come from files of the server alone, and no file outside its folder can be named."""
    server = await serve()
    answer = await server.http.get("/ui/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert (await server.http.get("/ui")).headers["location"] == "ui/"
    for name in ("..%2Fapp.py", "nothing.js", "__init__.py"):
        assert (await server.http.get(f"/ui/{name}")).status_code == 404
