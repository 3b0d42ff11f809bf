"""A server with a store and its engines are killed at random under graphs that have effects."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.killed import Killed
from tests.faults.sizes import KILLS
from tests.null.asgi import call
from tests.waits import WAIT_S, until

CLIENTS, LAST = 4, 10  # applications while everything is killed, and after that
MODULE = """
import os, time

def mark(name, folder):
    with open(os.path.join(folder, name), "a") as file:
        file.write("x")
    time.sleep(0.005)
    return name

def shout(text):
    time.sleep(0.005)
    return text.upper()
"""
FUNCTION = '[[function]]\nname = "{0}"\ncall = "ours:{0}"\npath = "{1}"\n'


def step(function: str, out: str, effects: str, **args: dict[str, Any]) -> dict[str, Any]:
    step = {"kind": "function", "name": function, "function": function, "args": args}
    return step | {"out": out, "effects": effects}


class Application:
    """A call, a function without effects, a call that reads its result, and one with an effect.

    `seen` has every answer that its client got for a variable: a value, or the code of an error.
    """

    def __init__(self, http: httpx2.AsyncClient, name: str, marks: Path) -> None:
        self.http = http
        self.name = name
        self.mark = marks / name
        self.session = ""
        self.seen: dict[str, set[str]] = {}

    async def run(self) -> None:
        calls = [
            call("a", f"{self.name} {{{{output:x}}}}", x="a"),
            call("c", "{{input:x}} c {{output:y}}", x="b", y="c"),
        ]
        marks = {"name": {"value": self.name}, "folder": {"value": str(self.mark.parent)}}
        steps = [
            step("shout", "b", "none", text={"var": "a"}),
            step("mark", "m", "once", **marks) | {"after": ["a"]},
        ]
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        body = {"calls": calls, "steps": steps}
        submit = await answered(lambda: self.http.post("/v1/submit", json=body, headers=headers))
        assert submit.status_code == 200, submit.text
        self.session = submit.json()["session_id"]
        for variable in ("m", "c", "b", "a", "m"):
            await self.see(variable)

    async def see(self, variable: str) -> None:
        body = {"session_id": self.session, "semantic_var_id": variable}
        answer = await answered(lambda: self.http.post("/v1/get", json=body))
        found = answer.json()
        said = found["value"] if answer.status_code == 200 else found["error"]["type"]
        self.seen.setdefault(variable, set()).add(said)


async def answered(send: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """Send until a server answers that is there and ready."""
    while True:
        try:
            answer = await send()
        except httpx2.TransportError:
            pass
        else:
            if answer.status_code != 503:
                return answer
        await asyncio.sleep(0.05)


def engines_of(server: int) -> list[int]:
    """The processes in which the operator's functions run."""
    found = []
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"functions" in words:
            found.append(int(child))
    return found


async def test_what_is_done_once_is_done_once_whatever_is_killed(tmp_path: Path) -> None:
    """Every variable has one value for ever, calls and functions without effects always end well,
    and a function with effects never runs twice: it has its value, or its client is told.

    In the end nothing runs, and the server has no more files open than before its last clients. The
    store is sound, and no submit was taken twice.
    """
    (tmp_path / "ours.py").write_text(MODULE)
    (tmp_path / "marks").mkdir()
    config = tmp_path / "weftline.toml"
    config.write_text("".join(FUNCTION.format(one, tmp_path) for one in ("mark", "shout")))
    server = Killed(tmp_path, "--null-step-s", "0.002", "--config", str(config))
    chance = random.Random(0)
    done: list[Application] = []
    killed = {"server": 0, "engine": 0}
    goes_on = True

    async def client(number: int) -> None:
        run = 0
        limits = httpx2.Limits(max_connections=4)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            while goes_on:
                application = Application(http, f"client-{number}-{run}", tmp_path / "marks")
                await application.run()
                done.append(application)
                run += 1

    await server.start()
    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    try:
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.02, 0.3))
            assert not any(one.done() for one in clients), [one for one in clients if one.done()]
            if chance.random() < 0.5:
                await until(lambda: engines_of(server.pid))
                os.kill(chance.choice(engines_of(server.pid)), signal.SIGKILL)
                killed["engine"] += 1
            else:
                await server.kill()
                await server.start()
                killed["server"] += 1
        goes_on = False
        await asyncio.gather(*clients)
        for application in done:
            expect(application)
        assert min(killed.values()) >= KILLS // 5 and len(done) >= CLIENTS
        await expect_quiet(server)
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await server.kill()
    with closing(sqlite3.connect(server.store)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (len(done) + LAST,)


def expect(application: Application) -> None:
    a = f"{application.name} "
    wanted = {"a": {a}, "b": {a.upper()}, "c": {f"{a.upper()} c "}}
    (mark,) = application.seen.pop("m")
    assert application.seen == wanted, application.name
    times = len(application.mark.read_text()) if application.mark.exists() else 0
    if mark == application.name:
        assert times == 1, application.name
    else:
        assert mark in ("EngineFailed", "Interrupted"), application.name
        assert times <= 1, (application.name, mark)


async def expect_quiet(server: Killed) -> None:
    """No engine runs or waits for anything, and no file stays open for a client that has left."""

    async def files(most: int | None = None) -> int:
        """The open files once nothing runs, and once there are at most so many."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = len(os.listdir(f"/proc/{server.pid}/fd"))
                async with httpx2.AsyncClient(base_url=server.url) as http:
                    rows = (await answered(lambda: http.get("/v1/engines"))).json()["engines"]
                is_idle = all((row["running"], row["waiting"]) == (0, 0) for row in rows)
                if is_idle and (most is None or found <= most):
                    return found
                await asyncio.sleep(0.05)

    before: int | None = None
    for number in range(LAST):
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
            application = Application(http, f"last-{number}", server.store.parent / "marks")
            await application.run()
        expect(application)
        # The first client waits for the engines that were killed last, which have files, too.
        before = before or await files()
    await files(most=before)
