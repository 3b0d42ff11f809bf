"""Engines that join over TCP: the contract, with the null engine at the other end; admission and
refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.contract.suite import EngineContract
from tests.contract.target import Target
from tests.contract.test_null import script
from tests.waits import WAIT_S, until
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.transport import wire
from weftline_engine.transport.tcp.handshake import FrameConnection, Rejected, respond
from weftline_engine.transport.tcp.join_gate import JoinGate
from weftline_engine.transport.tcp.join_host import PAUSES_S, EngineHost, HostConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "a key of enough characters"

# A gate's port, the names of the hosts that came in, and the engine of each.
Opened: TypeAlias = tuple[int, list[str], dict[str, api.Engine]]


def null(answers: dict[str, list[str]]) -> Callable[[], NullEngine]:
    rules = tuple((question, "".join(pieces)) for question, pieces in answers.items())
    pace = LatencyProfile(step_s=0.001)
    config = NullConfig(mode=NullMode.SCRIPT, script=rules, latency=pace, context_limit=4096)
    return lambda: NullEngine(config)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Target]:
    """The server's side of an engine whose host is another task of this process."""
    joined: asyncio.Queue[tuple[str, api.Engine, api.Description]] = asyncio.Queue()

    async def admit(name: str, engine: api.Engine, description: api.Description) -> None:
        joined.put_nowait((name, engine, description))

    gate = JoinGate(KEY, admit)
    port = await gate.listen("127.0.0.1", 0)
    answers = script()
    config = HostConfig(servers=(("127.0.0.1", port),), key=KEY, name="far", node="n1")
    host = EngineHost(config, null(answers))
    running = asyncio.create_task(host.run())
    name, engine, description = await joined.get()
    assert (name, description.node) == ("far", "n1")
    target = Target(engine, answers)
    await target.start()
    yield target
    host.leave()
    await running
    await target.close()
    await gate.close()


class TestJoined(EngineContract):
    """Every verb and event crosses a socket."""


@pytest_asyncio.fixture(loop_scope="module")
async def gate() -> AsyncIterator[Opened]:
    """A gate that refuses a host named "twice"; its port, and the hosts that came in."""
    names: list[str] = []
    engines: dict[str, api.Engine] = {}

    async def admit(name: str, engine: api.Engine, description: api.Description) -> None:
        if name == "twice":
            raise ValueError("there is one already")
        names.append(name)
        engines[name] = engine

    gate = JoinGate(KEY, admit)
    yield await gate.listen("127.0.0.1", 0), names, engines
    await gate.close()


@pytest.mark.parametrize(
    ("name", "key", "says"),
    [
        ("one", "another key of enough characters", "the key is wrong: use the server's"),
        ("twice", KEY, "there is one already"),
    ],
)
async def test_a_refused_host_gets_the_reason(gate: Opened, name: str, key: str, says: str) -> None:
    """A host with a wrong key, or with the name of one that is there, is told so, and never joins.
    Its key is not in the repr of its settings."""
    config = HostConfig(servers=(("127.0.0.1", gate[0]),), key=key, name=name)
    host = EngineHost(config, null(script()))
    with pytest.raises(Rejected, match=says):
        await asyncio.wait_for(host.run(), WAIT_S)
    assert gate[1] == [] and key not in repr(config)


async def test_a_name_in_use_is_refused_until_its_host_has_left(
    gate: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """Two hosts of one name would evict each other for ever. The second one is told what to do."""
    config = HostConfig(servers=(("127.0.0.1", gate[0]),), key=KEY, name="one")
    first, second, third = (EngineHost(config, null(script())) for _ in range(3))
    running = asyncio.create_task(first.run())
    await until(lambda: gate[1])  # a host is joined before its server has taken the engine
    assert f"engine one joined 127.0.0.1:{gate[0]}" in caplog.messages
    with pytest.raises(Rejected, match="an engine named 'one' is joined already: choose another"):
        await asyncio.wait_for(second.run(), WAIT_S)
    engine = gate[2]["one"]
    reading = asyncio.create_task(_all(engine))  # as the server does
    first.leave()
    await asyncio.wait_for(running, WAIT_S)
    await asyncio.wait_for(reading, WAIT_S)
    again = asyncio.create_task(third.run())
    await until(lambda: gate[1] == ["one", "one"])
    third.leave()
    await asyncio.wait_for(again, WAIT_S)


async def test_a_server_that_refuses_leaves_the_engine_to_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One server takes it and another does not: the first one keeps it. It has two addresses, and
    is joined once.
    """
    taken: list[api.Engine] = []

    async def takes(name: str, engine: api.Engine, description: api.Description) -> None:
        taken.append(engine)

    async def refuses(name: str, engine: api.Engine, description: api.Description) -> None:
        raise ValueError("not here")

    one, other = JoinGate(KEY, takes), JoinGate(KEY, refuses)
    port = await one.listen("0.0.0.0", 0)  # every loopback address
    addresses = (
        ("127.0.0.1", port),
        ("127.0.0.2", port),
        ("127.0.0.1", await other.listen("127.0.0.1", 0)),
    )
    host = EngineHost(HostConfig(servers=addresses, key=KEY, name="shared"), null(script()))
    running = asyncio.create_task(host.run())
    await until(lambda: host.joined and taken and "not here" in caplog.text)
    reading = asyncio.create_task(_all(taken[0]))
    assert host.joined == 1 and len(taken) == 1 and not running.done()
    host.leave()
    await asyncio.wait_for(running, WAIT_S)
    await asyncio.wait_for(reading, WAIT_S)
    await asyncio.gather(one.close(), other.close())


async def test_an_engine_follows_servers_that_move() -> None:
    """It is told of another server, and joins it at once. It stays with the first one until that is
    gone, and does not come back then.
    """
    taken: asyncio.Queue[tuple[str, api.Engine]] = asyncio.Queue()

    def gate(server: str) -> JoinGate:
        async def admit(name: str, engine: api.Engine, description: api.Description) -> None:
            taken.put_nowait((server, engine))

        return JoinGate(KEY, admit)

    first, second = gate("first"), gate("second")
    before = ("127.0.0.1", await first.listen("127.0.0.1", 0))
    after = ("127.0.0.1", await second.listen("127.0.0.1", 0))
    host = EngineHost(HostConfig(servers=(before,), key=KEY, name="moves"), null(script()))
    running = asyncio.create_task(host.run())
    async with asyncio.timeout(WAIT_S):
        server, old = await taken.get()
        host.follow([after])
        other, new = await taken.get()
        assert (server, other) == ("first", "second")
        await old.close()
        while host.joined > 1:  # noqa: ASYNC110 - a host sets no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * PAUSES_S[0])
    assert host.joined == 1 and taken.empty()
    reading = asyncio.create_task(_all(new))
    host.leave()
    await asyncio.wait_for(running, WAIT_S)
    await asyncio.wait_for(reading, WAIT_S)
    await asyncio.gather(first.close(), second.close())


async def _all(engine: api.Engine) -> None:
    async for _ in engine.events():
        pass


async def test_a_server_that_does_not_know_the_key_gets_no_engine() -> None:
    """The host demands a proof too, so a foreign program on the port learns only its name."""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FrameConnection(reader, writer)
        connection.send(wire.Hello("0" * 32, "impostor"))
        await connection.receive()
        connection.send(wire.Welcome("0" * 64))
        assert await connection.receive() == []
        writer.close()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    host = EngineHost(HostConfig(servers=(("127.0.0.1", port),), key=KEY), null(script()))
    with pytest.raises(Rejected, match="the server does not know the key"):
        await asyncio.wait_for(host.run(), WAIT_S)
    server.close()


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff",  # a frame of 4 GB
        b"\x00\x01\x00\x00" + b"x" * 65536,  # of 64 KB, before the proof
        b"GET / HTTP/1.1\r\n\r\n",
        wire.encode([wire.Free("c")]),
        wire.encode([wire.Prove("one", "n", "p")]),
        wire.encode([]),
    ],
)
async def test_nonsense_before_the_proof_ends_the_connection(gate: Opened, said: bytes) -> None:
    """A peer that has not proved its key can send nothing that is decoded, and nothing large."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gate[0])
    writer.write(said)
    await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    assert gate[1] == []


async def test_a_proof_serves_once(gate: Opened) -> None:
    """An overheard handshake opens no other one, because each has its own nonce."""
    heard: list[wire.Message] = []

    class Overheard(FrameConnection):
        def send(self, *messages: wire.Message) -> None:
            heard.extend(messages)
            super().send(*messages)

    connection = Overheard(*await asyncio.open_connection("127.0.0.1", gate[0]))
    await respond(connection, KEY, "one")
    await connection.close()
    again = FrameConnection(*await asyncio.open_connection("127.0.0.1", gate[0]))
    await again.receive()
    again.send(*heard)
    assert await again.receive() == [wire.Refused("the key is wrong: use the server's")]
    await again.close()
