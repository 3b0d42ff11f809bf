"""Large sessions come, are shown and go in many turns of the event loop, and stay whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.steps.wire import each
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine
from weftline_server.observe.parts import PART, More, json_text, texts, whole
from weftline_server.observe.snapshot import Snapshot
from weftline_server.observe.view import graph_parts, graph_view, value_parts, value_view
from weftline_server.runtime.backlog import TURN_ACTIONS, Backlog
from weftline_server.runtime.containment import Containment
from weftline_server.session import events as ev
from weftline_server.session.draft import Draft
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState

MANY = 1500  # calls: more than one part of everything


def calls(count: int = MANY) -> list[dict[str, Any]]:
    return [call(f"c{i}", f"x{i}{{{{output:o}}}}", o=f"v{i}") for i in range(count)]


class Counting(NullEngine):
    """Counts the ops that it got."""

    got = 0

    def submit(self, op: api.Op) -> None:
        type(self).got += 1
        super().submit(op)


async def turns(server: Server, work: asyncio.Task[Any]) -> int:
    """How often the event loop turned while `work` ran."""
    count = 0
    while not work.done():
        await asyncio.sleep(0)
        count += 1
    return count


async def test_a_submit_enters_whole(serve: Serve) -> None:
    """While it is made ready another client sees none of its calls, and then all of them."""
    server = await serve()
    id = await server.session()
    session = server.driver.registry.find("local", id)
    work = asyncio.ensure_future(server.submit(id, *calls(), detach=True))
    seen = set()
    while not work.done():
        seen.add((len(session.tasks), len(session.variables), len(session.graph.primitives)))
        session.validate()
        await asyncio.sleep(0)
    assert work.result().status_code == 200
    assert (0, 0, 0) in seen and seen <= {(0, 0, 0), (MANY, MANY, MANY)}
    assert len(session.tasks) == MANY


@pytest.mark.parametrize("fault", ["twice", "cycle", "none"])
async def test_a_fault_in_the_last_call_refuses_all(serve: Serve, fault: str) -> None:
    """The session has nothing of the others, and takes them when they come again without it."""
    server = await serve()
    id = await server.session()
    bad = {
        "twice": call("bad", "{{output:o}}", o="v0"),
        "cycle": call("bad", "{{input:i}}{{output:o}}", i="w", o="w"),
        "none": call("bad", "nothing"),
    }[fault]
    answer = await server.submit(id, *calls(), bad)
    error = {
        "twice": (422, "DuplicateProducer"),
        "cycle": (422, "CyclicGraph"),
        "none": (400, "InvalidRequest"),
    }[fault]
    assert (answer.status_code, answer.json()["error"]["type"]) == error
    session = server.driver.registry.find("local", id)
    assert not session.tasks and not session.variables and not session.graph.producer
    assert (await server.submit(id, *calls())).status_code == 200


async def test_a_session_that_is_closed_meanwhile_takes_no_calls(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were entered after the close, and ran in a session that nobody could find."""
    server = await serve()
    id = await server.session()
    session = server.driver.registry.find("local", id)
    checked = asyncio.Event()

    def check(one: ServerSession, draft: Draft) -> None:
        checked.set()
        plain(one, draft)

    plain = ServerSession.check
    monkeypatch.setattr(ServerSession, "check", check)
    work = asyncio.ensure_future(server.submit(id, *calls(), detach=True))
    await checked.wait()  # its prompts are tokenised next
    server.service.close(session)
    answer = await work
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "UnknownSession")
    assert not session.tasks and not server.service.registry.busy()


async def test_a_close_starts_nothing_more(serve: Serve) -> None:
    """From its answer on no call of the session goes to an engine, although it is taken apart in
    many turns, and an engine has room for more in each.
    """
    Counting.got = 0
    config = NullConfig(latency=LatencyProfile(step_s=0.001))
    server = await serve(config, also={"null": lambda: Counting(config)})
    id = await server.session()
    await server.submit(id, *calls(), detach=True)
    session = server.driver.registry.find("local", id)
    while not session.execution.under_way or session.execution.held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    server.service.close(session)
    assert {run.state for run in session.tasks.values()} <= {RunState.DONE, RunState.CANCELLED}
    got = Counting.got
    assert 0 < got < MANY
    taken = asyncio.ensure_future(server.driver._backlog.contained.settle())
    assert await turns(server, taken) > MANY // TURN_ACTIONS
    await asyncio.sleep(0.05)
    assert Counting.got == got
    assert server.driver.dispatcher.queued == 0
    ended = [line for line in (await server.http.get("/metrics")).text.splitlines()
             if line.startswith("weftline_calls_total")]  # fmt: skip
    assert sum(float(line.rpartition(" ")[2]) for line in ended) == MANY


async def test_many_actions_are_performed_in_order_and_stops_first() -> None:
    """What comes later waits for what came before, also the end that a caller asks for."""
    done: list[object] = []
    session = ServerSession("s", "t", now=0.0)
    backlog = Backlog(lambda _, action: done.append(action), Containment(lambda *_: None))
    few: list[ev.Action] = [ev.Notify("a"), ev.Stop("b")]
    backlog.add(session, few)
    assert done == few
    many: list[ev.Action] = [*(ev.Notify(f"v{n}") for n in range(TURN_ACTIONS)), ev.Stop("s")]
    backlog.add(session, many)
    backlog.add(session, few)
    backlog.after(session, lambda: done.append("after"))
    assert done == few, "the first part has a turn of its own"
    while "after" not in done:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert done == [*few, ev.Stop("s"), *many[:-1], ev.Stop("b"), ev.Notify("a"), "after"]


async def test_a_graph_is_of_one_moment(serve: Serve) -> None:
    """Calls end, and more come, while its parts are sent: it has none of that."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.02)))
    id = await server.session()
    ahead = [*calls(400), call("last", "{{input:q}} {{output:z}}", q="q", z="z")]
    await server.submit(id, *ahead, detach=True)
    session = server.driver.registry.find("local", id)
    before = graph_view(session)
    parts = graph_parts(Snapshot(session))
    first = [next(parts) for _ in range(3)]
    await server.http.put(f"/v1/session/{id}/variable/q", json={"value": "now"})
    await server.submit(id, call("more", "{{output:n}}", n="n"), detach=True)
    for run in list(session.tasks.values())[:300]:
        server.service.cancel(session, run.task.id)

    def chained() -> Any:
        yield from first
        yield from parts

    assert whole(chained()) == before
    now = graph_view(session, whole_server=True)
    assert now != before and (await server.graph(id))["calls"][:300] == now["calls"][:300]


async def test_the_graph_is_sent_in_parts(serve: Serve) -> None:
    """The routes that give a graph give the same one: alone, after a submit, and as an event."""
    server = await serve()
    body = {"calls": calls(300), "get": ["v299"], "graph": True, "open": True, "session_id": "mine"}
    answer = (await server.http.post("/v1/submit", json=body)).json()
    assert len(answer["graph"]["calls"]) == 300 and answer["values"] == {"v299": "x299"}
    alone = await server.http.get("/v1/session/mine/graph")
    assert alone.headers["content-type"] == "application/json"
    assert [one["call_id"] for one in alone.json()["calls"]] == [
        one["call_id"] for one in answer["graph"]["calls"]
    ]
    watch = {"session_id": answer["session_id"], "watch": ["v1"], "graph": True}
    lines = (await server.http.post("/v1/submit", json=watch)).text.splitlines()
    told = json.loads(lines[lines.index("event: graph") + 1].removeprefix("data: "))
    assert told["calls"] == alone.json()["calls"]


async def test_values_are_told_in_the_order_in_which_they_were_ready(serve: Serve) -> None:
    """The list of an each over 300 items takes three turns, and is told before a step that reads
    it, and before a step that fails because of it.
    """
    server = await serve()
    body = {"calls": [call("m", "{{input:item}}{{output:r}}", item="item", r="r")]}
    listed = each([f"i{n}" for n in range(300)], body, {"r": "all"}, max_items=300)
    reads = {"kind": "mean", "parts": [{"var": "all"}], "out": "mean"}
    watch = {"steps": [listed, reads], "watch": ["mean", "all"], "close": True}
    lines = (await server.http.post("/v1/submit", json=watch)).text.splitlines()
    told = [
        (line, json.loads(data.removeprefix("data: "))["semantic_var_id"])
        for line, data in pairwise(lines)
        if line in ("event: value", "event: failed")
    ]
    assert told == [("event: value", "all"), ("event: failed", "mean")]


async def test_a_long_list_is_told_in_parts(serve: Serve) -> None:
    """The value of an each over 300 items says how each item was made, a part at a time."""
    server = await serve()
    id = await server.session()
    body = {"calls": [call("m", "{{input:item}}{{output:r}}", item="item", r="r")]}
    items = [f"i{n}" for n in range(300)]
    step = each(items, body, {"r": "all"}, max_items=300)
    await server.submit(id, steps=[step], get=["all"])
    session = server.driver.registry.find("local", id)
    parts = list(value_parts(session, "all"))
    sizes = [len(part[1].items) for part in parts if part and isinstance(part[1], More)]
    assert sizes == [PART, PART, 300 - 2 * PART]
    seen = value_view(session, "all")
    assert len(seen["items"]) == 300 and seen["value"] == items
    assert json.loads(await json_text(value_parts(session, "all"))) == seen


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("a", 1), None, ("b", [1, 2])],
        [("a", More([])), ("b", More([1])), ("b", More([2, 3])), ("b", More([])), ("c", {"d": "é"}),
         ("e", None)],
        [("a", More([[], {}])), ("a", More(["x"]))],
    ],
)  # fmt: skip
async def test_parts_are_one_object(parts: list[Any]) -> None:
    """As JSON, in as many texts as there are parts, and at once."""
    made: AsyncIterator[str] = texts(iter(parts))
    assert json.loads("".join([one async for one in made])) == whole(iter(parts))
