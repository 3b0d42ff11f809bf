"""Later criteria and calls change the order of waiting calls, and hints of what runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call, running
from tests.null.test_passes import call as node
from weftline.contract.protocol import Criterion
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_server.graph.addition import Addition
from weftline_server.graph.graph import Graph
from weftline_server.session.planning import Planning

ONE_PLACE = NullConfig(max_running=1, latency=LatencyProfile(step_s=0.02))


async def busy(serve: Serve) -> Server:
    """A server whose only place is occupied for a while."""
    server = await serve(ONE_PLACE)
    hold = await server.session()
    await server.submit(hold, call("hold", "one two three four five{{output:x}}", x="x"))
    while running(server.driver.dispatcher)["null"][0] == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return server


async def queued(server: Server, count: int) -> None:
    while server.service.engines.status().queued < count:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)


def small(name: str, **more: Any) -> dict[str, Any]:
    return {**call(name, f"{name}{{{{output:o}}}}", o="v"), **more}


@pytest.mark.parametrize(
    ("wanted", "order"), [({}, ["chat", "bulk"]), ({"criteria": "latency"}, ["bulk", "chat"])]
)
async def test_a_later_get_moves_a_call_that_waits(
    serve: Serve, wanted: dict[str, str], order: list[str]
) -> None:
    """A bulk call that came first stays behind a chat until a get asks for its value."""
    server = await busy(serve)
    bulk, chat = await server.session(), await server.session()
    await server.submit(bulk, small("bulk", criteria="throughput"))
    await queued(server, 1)
    await server.submit(chat, small("chat"))
    await queued(server, 2)
    ended: list[str] = []

    async def get(session: str, name: str, **more: str) -> None:
        assert (await server.get(session, "v", **more)).json()["value"] == name
        ended.append(name)

    await asyncio.gather(get(bulk, "bulk", **wanted), get(chat, "chat"))
    assert ended == order


async def test_a_later_call_moves_its_producers_that_wait(serve: Serve) -> None:
    """Two maps wait when their reduce is submitted. From then on they are a group and
    one deeper.
    """
    server = await busy(serve)
    session = await server.session()
    maps = [call(f"m{i}", f"{i}{{{{output:o}}}}", o=f"m{i}") for i in range(2)]
    await server.submit(session, *maps)
    await queued(server, 2)
    dispatcher = server.driver.dispatcher

    def hints() -> list[tuple[str, int]]:
        waiting = (work.op.hints for work in dispatcher._queue)
        return [(hint.group, hint.depth) for hint in waiting]

    assert hints() == [("", 0)] * 2
    reduce = call("sum", "{{input:a}}{{input:b}}{{output:s}}", a="m0", b="m1", s="s")
    [submitted] = (await server.submit(session, reduce)).json()["calls"]
    dispatcher._rounds.run()
    assert hints() == [(f"{submitted['call_id']}@1", 1)] * 2
    assert (await server.get(session, "s")).json()["value"] == "01"


async def test_an_application_that_is_nearly_done_goes_first(serve: Serve) -> None:
    """An application has two of eight calls left when another one with three comes. The work left
    now counts, not the work left when they were queued.
    """
    server = await serve(ONE_PLACE)
    old, new = await server.session(), await server.session()
    ended: list[str] = []

    async def run(session: str, count: int) -> None:
        calls = [call(f"c{i}", f"{i}{{{{output:o}}}}", o=f"v{i}") for i in range(count)]
        await server.submit(session, *calls)

        async def get(variable: str) -> None:
            await server.get(session, variable)
            ended.append(session)

        await asyncio.gather(*(get(f"v{i}") for i in range(count)))

    running = asyncio.create_task(run(old, 8))
    while len(ended) < 6:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)
    await asyncio.gather(run(new, 3), running)
    assert ended == [old] * 8 + [new] * 3


@pytest.mark.parametrize("stream", [False, True], ids=["get", "stream"])
async def test_any_criterion_may_come_with_a_get(serve: Serve, stream: bool) -> None:
    """The graph shows the objective that the call then has."""
    server = await serve(ONE_PLACE)
    for wanted in Criterion:
        session = await server.session()
        await server.submit(session, call("wait", "{{input:t}}{{output:o}}", t="topic", o="v"))
        more = {"criteria": wanted, "wait": True, "stream": stream}
        get = asyncio.create_task(server.get(session, "v", **more))
        await asyncio.sleep(0)
        await server.http.put(f"/v1/session/{session}/variable/topic", json={"value": "x"})
        assert '"value":"x"' in (await get).text.replace(" ", "")
        assert (await server.graph(session))["calls"][0]["objective"] == wanted


def test_an_ended_call_keeps_its_plan() -> None:
    """The stricter criterion wins in either order. A call that runs is changed, too."""
    graph = Graph()
    planning = Planning(graph, frozenset())
    for name in "abc":
        graph.add(Addition.of([node(name)]))
        planning.add([f"{name}/0"])
    planning.update()
    planning.start("b/0")
    planning.want("c", Criterion.THROUGHPUT)
    assert planning.update() == ["c/0"]
    planning.end("c/0")
    for wanted in (Criterion.THROUGHPUT, Criterion.TTFT, Criterion.LATENCY, Criterion.TPOT):
        for name in "abc":
            planning.want(name, wanted)
        moved = set() if wanted is Criterion.TPOT else {"a/0", "b/0"}
        assert set(planning.update()) == moved
    assert planning.criteria["a"] is Criterion.LATENCY
    objective = planning.plan.objective
    assert objective["a/0"] is objective["b/0"] is Criterion.LATENCY
    assert objective["c/0"] is Criterion.THROUGHPUT
