"""Several servers on one port: `weftline serve --servers N`, its restarts and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.cluster.database import Databases
from tests.cluster.test_servers import opened, value
from tests.faults.test_clients_come_back import call as ours
from tests.null.asgi import call
from tests.waits import WAIT_S
from weftline import AsyncClient
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import SubmitBody
from weftline.watching import Value
from weftline_server.commands.server_process import pause_s
from weftline_server.commands.settings import load
from weftline_server.commands.supervisor import check

SERVERS = 3
OUTPUT = call("one", "one two three four {{output:x}}", x="a")
CHAIN = (ours("one", "", "a", "one two three four "), ours("two", "a", "b", "five "))


@dataclass
class Machine:
    """The parent of several servers."""

    process: asyncio.subprocess.Process
    url: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def servers(self) -> list[int]:
        """The processes of the servers."""
        return self._children("--as-server")

    @property
    def engines(self) -> list[int]:
        """The processes of the engines that the servers share."""
        return self._children("join")

    def _children(self, word: str) -> list[int]:
        """Those with this word in their command line, and no others."""
        pid = self.process.pid
        found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [one for one in found if word in command_of(one)]

    async def until_said(self, text: str) -> str:
        """Wait for a line with this text, on either stream."""
        assert self.process.stdout is not None
        async with asyncio.timeout(150):
            async for line in self.process.stdout:
                self.said.append(line.decode())
                if text in self.said[-1]:
                    return self.said[-1]
        raise AssertionError("".join(self.said))


@asynccontextmanager
async def machine(
    stores: Databases, *arguments: str, engine: Sequence[str] = ("--engine", "null")
) -> AsyncIterator[Machine]:
    """Servers of one parent, which are ready."""
    words = ["-m", "weftline_server", "serve", "--no-ui", "--port", "0", *engine]
    words += ["--store", stores.address()]
    words += ["--servers", str(SERVERS), "--lease-s", "2", "--until-stdin-closes", *arguments]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    found = Machine(process)
    try:
        line = await found.until_said("serves on http")
        found.url = line.split()[-1]
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass
class Clients:
    """Clients that submit a graph without an idempotency key, and repeat nothing. Every eighth
    opens a connection of its own, as behind a balancer without memory.
    """

    url: str
    pause_s: float
    done: int = 0
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    goes_on: bool = True

    async def run(self) -> None:
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as http:
            while self.goes_on:
                began = time.monotonic()
                try:
                    if self.done % 8:
                        await self._graph(http)
                    else:
                        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as fresh:
                            await self._graph(fresh)
                except (httpx2.HTTPError, AssertionError) as error:
                    self.failed.append(repr(error))
                self.seconds.append(time.monotonic() - began)
                self.done += 1
                await asyncio.sleep(self.pause_s)

    async def _graph(self, http: httpx2.AsyncClient) -> None:
        """A submit, a value that is read apart, and a call that reads the first one's."""
        id = await opened(http, OUTPUT)
        more = call("two", "{{input:x}}five {{output:y}}", x="a", y="b")
        answer = await http.post(
            "/v1/submit", json={"session_id": id, "calls": [more], "get": ["b"]}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["values"] == {"b": "one two three four five "}
        body = {"session_id": id, "semantic_var_id": "a"}
        answer = await http.post("/v1/get", json=body)
        assert (answer.status_code, answer.json().get("value")) == (200, "one two three four ")


async def with_our_client(url: str, clients: Clients) -> None:
    """What an application does that uses our client: it watches, and reads parts."""
    async with AsyncClient(url) as client:
        while clients.goes_on:
            submit = SubmitBody(calls=CHAIN, watch=("a", "b"), close=True)
            found = [event async for event in client.watch(submit) if isinstance(event, Value)]
            values = [(one.variable, one.value) for one in found]
            assert values == [("a", "one two three four "), ("b", f"five {values[0][1]}")]
            session = await client.session().open()
            await session.submit(CHAIN)
            assert "".join([part async for part in session.stream("b")]) == values[1][1]
            await session.close()
            clients.done += 1
            await asyncio.sleep(clients.pause_s)


async def test_servers_are_replaced_one_after_the_other(stores: Databases) -> None:
    """Under load no request fails, though its client repeats nothing; one of our clients does not
    notice. Each server is another process then, and each session was kept.
    """
    async with machine(stores, "--null-step-s", "0.005") as found:
        before = found.servers
        assert len(before) == SERVERS
        clients = Clients(found.url, pause_s=0.05)
        running = [asyncio.create_task(clients.run()) for _ in range(6)]
        running += [asyncio.create_task(with_our_client(found.url, clients)) for _ in range(2)]
        async with httpx2.AsyncClient(base_url=found.url, timeout=60) as http:
            kept = await opened(http, OUTPUT)
            assert await value(http, kept, "a") == "one two three four "
        found.process.send_signal(signal.SIGHUP)
        await found.until_said(f"all {SERVERS} servers were replaced")
        clients.goes_on = False
        await asyncio.gather(*running)
        after = found.servers
        assert len(after) == SERVERS and not set(before) & set(after)
        assert clients.failed == [] and clients.done > 8 * SERVERS
        async with httpx2.AsyncClient(base_url=found.url, timeout=60) as http:
            assert await value(http, kept, "a") == "one two three four "
        found.process.terminate()
        assert await found.process.wait() == 0


async def test_an_engine_that_joins_is_shared(
    stores: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process has the engine for two servers, and for those that replace them."""
    monkeypatch.setenv("WEFTLINE_ENGINE_KEY", "0123456789abcdef")
    first = consecutive_ports(3)
    gates = ",".join(f"127.0.0.1:{first + at}" for at in range(3))
    words = ["-m", "weftline_server", "join", gates, "--engine", "null"]
    joined = await asyncio.create_subprocess_exec(sys.executable, *words)
    try:
        joins = ("--engines-on", f"127.0.0.1:{first}")
        async with machine(stores, "--servers", "2", engine=joins) as found:
            clients = Clients(found.url, pause_s=0.05)
            running = [asyncio.create_task(clients.run()) for _ in range(4)]
            found.process.send_signal(signal.SIGHUP)
            await found.until_said("all 2 servers were replaced")
            clients.goes_on = False
            await asyncio.gather(*running)
            assert clients.failed == [] and clients.done > 0
    finally:
        joined.terminate()
        await joined.wait()


def consecutive_ports(count: int) -> int:
    """The first of some ports that are free now."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            first: int = free.getsockname()[1]
        try:
            for port in range(first, first + count):
                with socket.socket() as free:
                    free.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first


async def test_a_server_that_is_killed_is_started_again(stores: Databases) -> None:
    """Its session goes on elsewhere, and there are as many servers as before. When the parent is
    killed, the servers end.
    """
    async with machine(stores) as found:
        async with httpx2.AsyncClient(base_url=found.url, timeout=60) as http:
            ids = [await opened(http, OUTPUT) for _ in range(4)]
        killed, *others = found.servers
        os.kill(killed, signal.SIGKILL)
        await found.until_said("a server ended with code -9, and is started again")
        for id in ids:
            async with httpx2.AsyncClient(base_url=found.url, timeout=60) as http:
                assert await value(http, id, "a") == "one two three four "
        async with asyncio.timeout(WAIT_S):
            while len(found.servers) < SERVERS:  # noqa: ASYNC110 - they are processes
                await asyncio.sleep(0.05)
        last = found.servers
        assert set(others) < set(last)
        found.process.kill()
        async with asyncio.timeout(WAIT_S):
            while any(map(is_running, last)):  # noqa: ASYNC110 - they are processes
                await asyncio.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether there is this process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid: int) -> list[str]:
    """The words of its command line; none of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def test_what_several_servers_cannot_share_is_refused(tmp_path: Path) -> None:
    """Each refusal says what to do."""
    shared = "postgresql://db/weftline"
    with pytest.raises(InvalidRequest, match="give --store postgresql://"):
        check(load(None, {"servers": 2, "sessions.path": "file.db"}))
    check(load(None, {"servers": 2, "sessions.path": shared}))
    (tmp_path / "weftline.toml").write_text('servers = 3\n[[store]]\nstore = "memory"\n')
    settings = load(tmp_path / "weftline.toml", {"sessions.path": shared})
    with pytest.raises(InvalidRequest, match="use pgvector or sqlite"):
        check(settings)
    with pytest.raises(
        InvalidRequest, match="servers: Input should be less than or equal to 64, not 65"
    ):
        load(None, {"servers": 65})


def test_a_server_that_does_not_start_is_tried_less_and_less_often() -> None:
    """At once, and later with pauses up to ten seconds."""
    assert [pause_s(failures) for failures in (0, 1, 2, 5, 9)] == [0.0, 0.5, 1.0, 8.0, 10.0]


async def test_a_port_that_another_program_has_is_refused(stores: Databases) -> None:
    """Also one that would share it, as the servers of another parent do."""
    async with machine(stores) as found:
        port = found.url.rpartition(":")[2]
        words = ["-m", "weftline_server", "serve", "--engine", "null", "--servers", "2"]
        words += ["--port", port, "--store", stores.address()]
        other = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ,
        )
        _, said = await other.communicate()
        assert other.returncode == 1 and f"port {port} on 127.0.0.1 is not free".encode() in said
