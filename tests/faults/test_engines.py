"""Engines that die, hang or raise: their supervisor goes on, and only the culprit fails."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.sizes import APPLICATIONS, KILLS
from tests.null.asgi import Serve, Server, call
from tests.null.test_fleet import Bench, Puppet, finished, settle, started
from tests.null.test_fleet import benches as benches
from tests.waits import until, wait_until
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.services.retrieval.config import StoreConfig
from weftline_engine.transport.process import ProcessEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.runtime import lifecycle
from weftline_server.schedule.delivery import MAX_DEATHS
from weftline_server.schedule.engines import fleet
from weftline_server.schedule.engines.member import EngineState, Member


async def test_a_stopped_engine_is_noticed_killed_and_started_again(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: the process is there, its socket is open, and nothing comes. 45 s went by, and ready
    said 200. Now it is killed after 4 s, and its successor works.
    """
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    made: list[ProcessEngine] = []

    def make() -> ProcessEngine:
        made.append(ProcessEngine(StoreConfig(store="memory", name="store")))
        return made[-1]

    bench = Bench()
    bench.dispatcher._fleet.members["store"] = Member("store", make)
    benches.append(bench)
    await bench.dispatcher.start(bench)
    assert made[0].pid is not None
    stopped = made[0].pid
    await until(lambda: made[0]._life._beats)  # the first sign of life
    os.kill(stopped, signal.SIGSTOP)
    # The seconds are counted in ticks of this process, so on a busy machine they take longer.
    await until(lambda: bench.states["store"] is EngineState.DOWN)
    slot = bench.dispatcher.members[0]
    assert slot.last_error == "the engine process gave no sign of life for 4 s"
    await until(lambda: bench.states["store"] is EngineState.READY)
    assert len(made) == 2 and made[1].pid != stopped
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


async def test_any_error_of_a_supervisor_leads_to_another_start(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server had no file descriptor left when it started a dead engine again: the engine was
    down for ever.
    """
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    starts: list[Puppet] = []

    class Unlucky(Puppet):
        async def start(self) -> api.Description:
            starts.append(self)
            if len(starts) in (2, 3):
                raise OSError(24, "Too many open files")
            return await super().start()

    bench = Bench()
    benches.append(bench)
    bench.dispatcher._fleet.members["one"] = Member("one", Unlucky)
    await bench.dispatcher.start(bench)
    await starts[0].die("signal 9")
    await until(lambda: bench.states["one"] is EngineState.READY)
    assert len(starts) == 4 and [one.closed for one in starts] == [True, True, True, False]


async def test_a_sweeper_outlives_its_errors(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sweep raises; the next ones run."""
    monkeypatch.setattr(lifecycle, "SWEEP_S", 0.01)
    server = await serve()
    swept = 0

    def sweep() -> None:
        nonlocal swept
        swept += 1
        if swept == 1:
            raise RuntimeError("a bug")

    monkeypatch.setattr(server.driver, "sweep", sweep)
    await until(lambda: swept > 2)


PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
from weftline.contract.children import die_with
die_with(os.getppid())
print("here", flush=True)
time.sleep(600)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_stopped_child_dies_with_its_server() -> None:
    """A stopped process does not see that its socket was closed: it stayed for ever."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: state_of(child) == "T")
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    wait_until(lambda: state_of(child) in ("gone", "Z"))


def state_of(pid: int) -> str:
    """The letter of a process's state, as ps shows it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


async def test_a_call_that_saw_two_deaths_runs_alone(benches: list[Bench]) -> None:
    """`bad` kills every engine, beside three others. After two deaths each of the four runs with
    nothing beside it: three of them end well, and `bad` takes nobody along.
    """
    bench = await started(benches)
    names = ["a", "bad", "b", "c"]
    done: set[str] = set()
    most_beside = [0] * 12
    for number in range(12):
        engine = Puppet(max_running=8)
        await bench.dispatcher.join(f"e{number}", engine, engine.description)
        if number == 0:
            for name in names:
                await bench.call(name)
        await settle()
        if len(done) == 4:
            break
        while "s/bad" not in {op.id for op in engine.ops} and number >= 2:
            (op,) = [op for op in engine.ops if op.id not in done]
            done.add(op.id)
            await engine.say(finished(op))
            if not [one for one in engine.ops if one.id not in done]:
                break
        running = [op.id for op in engine.ops if op.id not in done]
        most_beside[number] = len(running)
        await engine.die("signal 9")
        if any(isinstance(one, api.Failed) for one in bench.outcomes("bad")):
            done.add("s/bad")
    assert most_beside[:2] == [4, 4] and max(most_beside[2:]) == 1
    for name in ("a", "b", "c"):
        assert isinstance(bench.outcomes(name)[-1], api.Finished)
    assert isinstance(bench.outcomes("bad")[-1], api.Failed)


class Killed(NullEngine):
    """A null engine that can be killed at any moment, with parts of texts on their way."""

    alive: Killed | None = None

    async def start(self) -> api.Description:
        self.died = False
        Killed.alive = self
        return await super().start()

    def kill(self) -> None:
        self.died = True
        for _, task in self._running.values():
            task.cancel()
        self._events.put_nowait(None)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        async for events in super().events():
            yield events
        if self.died:
            raise api.EngineDied("killed by signal 9")


async def test_kills_lose_no_application_that_nobody_streamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """600 applications of three calls in a row; the engine dies 20 times. 259 were lost, as any
    generated text kept a call from running again. Now all end, each value made of whole texts. No
    kill hits a call for the fourth time: such a call fails, by the test before this one.
    """
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    pace = LatencyProfile(step_s=0.004)
    config = NullConfig(mode=NullMode.ECHO, latency=pace, max_running=64)
    app = create_app(ServerConfig(), {"one": lambda: Killed(config)})
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://t") as http:
            server = Server(app, http)
            chaos, room = random.Random(7), asyncio.Semaphore(600)

            async def application(number: int) -> tuple[int, Any]:
                text = f"app {number} says five words"
                body = {
                    "calls": [
                        call("a", text + "{{output:a}}", a="a"),
                        call("b", "{{input:a}} b{{output:b}}", a="a", b="b"),
                        call("c", "{{input:b}} c{{output:c}}", b="b", c="c"),
                    ],
                    "get": ["c"],
                    "close": True,
                }
                async with room:
                    answer = await server.http.post("/v1/submit", json=body, timeout=120)
                return answer.status_code, answer.json()

            async def kills() -> None:
                for _ in range(KILLS):
                    await asyncio.sleep(chaos.uniform(0.02, 0.12))
                    assert Killed.alive is not None
                    (member,) = server.driver.dispatcher.members
                    if all(one.deaths + 1 < MAX_DEATHS for one in member.ops.works.values()):
                        Killed.alive.kill()

            killing = asyncio.create_task(kills())
            found = await asyncio.gather(*map(application, range(APPLICATIONS)))
            await killing
    for number, (status, body) in enumerate(found):
        assert status == 200, body
        assert body["values"]["c"] == f"app {number} says five words b c"
