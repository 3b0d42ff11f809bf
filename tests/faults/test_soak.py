"""Sessions with random aborts leave nothing behind: memory, files and tasks stay flat."""

from __future__ import annotations

import asyncio
import gc
import os
import random

from tests.faults.sizes import SESSIONS
from tests.null.asgi import Serve, Server, call, running
from tests.waits import until
from weftline_engine.pretend.null import LatencyProfile, NullConfig

AT_ONCE = 50


def resident() -> int:
    """The process's memory in bytes."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def session(server: Server, chance: random.Random) -> None:
    """One run of three calls, which may end well, be closed, or be left by its client."""
    text = "some words to say " * 20
    calls = [
        call("a", text + "{{output:a}}", a="a"),
        call("b", "{{input:a}}{{output:b}}", a="a", b="b"),
        call("c", "{{input:b}}{{output:c}}", b="b", c="c"),
    ]
    way = chance.choice(("end", "close", "leave", "cancel"))
    id = await server.session()
    await server.submit(id, *calls)
    if way == "end":
        assert (await server.get(id, "c")).status_code == 200
    elif way == "leave":
        get = asyncio.create_task(server.get(id, "c"))
        await asyncio.sleep(chance.uniform(0, 0.02))
        get.cancel()
        await asyncio.gather(get, return_exceptions=True)
    elif way == "cancel":
        await server.http.delete(f"/v1/session/{id}/variable/b")
        assert (await server.get(id, "c")).status_code in (200, 409)
    await server.http.delete(f"/v1/session/{id}")


async def test_sessions_with_random_aborts_leave_nothing(serve: Serve) -> None:
    """Half of the sessions warm everything up; the other half must not make it grow."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.0002)))
    chance = random.Random(3)

    async def many(count: int) -> None:
        for _ in range(0, count, AT_ONCE):
            await asyncio.gather(*(session(server, chance) for _ in range(AT_ONCE)))

    tasks = len(asyncio.all_tasks())
    await many(SESSIONS // 2)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    memory, files = resident(), len(os.listdir("/proc/self/fd"))
    await many(SESSIONS // 2)
    driver = server.driver
    assert len(driver.registry) == 0
    # What an engine or a task still does for closed sessions ends by itself.
    await until(lambda: running(driver.dispatcher) == {"null": (0, 0)})
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert driver.dispatcher.queued == 0
    assert (
        not driver._starts._prepared and not driver._prompts._early and not driver.readers._signals
    )
    assert len(os.listdir("/proc/self/fd")) <= files
    # Sessions that were closed can be looked at for a while, within bounds of their own.
    assert resident() - memory < 40_000_000
