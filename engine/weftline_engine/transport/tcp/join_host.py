"""Runs an engine on this machine, joins servers with it, and joins again after a disconnect."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from weftline_engine import api
from weftline_engine.transport import wire
from weftline_engine.transport.tcp.handshake import (
    HANDSHAKE_S,
    HEARTBEAT_S,
    LOST_S,
    FrameConnection,
    Rejected,
    check_key,
    respond,
)
from weftline_engine.transport.tcp.shared_engine import ServerSeat, SharedEngine

log = logging.getLogger("weftline.host")

PAUSES_S = (0.2, 1.0, 3.0)  # seconds between attempts to join; the last one repeats
LOOK_UP_S = 5.0  # between two look-ups of a server's name, which may get more addresses
DRAIN_S = 30.0  # seconds that ops may still run after `leave`

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """The servers and their key, the engine's name, and this machine's name.

    A name of `servers` may have several addresses: there is a server at each of them. `node` is
    shown in health reports and session graphs. Raises ValueError for a short key.
    """

    servers: tuple[Address, ...]
    key: str = field(repr=False)
    name: str = "engine"
    node: str = ""

    def __post_init__(self) -> None:
        check_key(self.key)


class EngineHost:
    """Keeps one engine joined to servers until `leave`."""

    def __init__(self, config: HostConfig, make: Callable[[], api.Engine]) -> None:
        self._config = config
        self._make = make
        self._process = secrets.token_hex(16)
        self._leave = asyncio.Event()
        self._names = config.servers
        self._told = asyncio.Event()  # other names
        self._followed: set[Address] = set()  # addresses of servers
        self._joined: set[Address] = set()  # of these
        self._refusing: set[Address] = set()  # of these
        self._servers: dict[Address, str] = {}  # the names of those that are joined, or about to be

    @property
    def joined(self) -> int:
        """How many servers use the engine."""
        return len(self._joined)

    def leave(self) -> None:
        """Take no new ops, finish the running ones, and end `run`."""
        self._leave.set()

    def follow(self, servers: Iterable[Address]) -> None:
        """Join these servers from now on, and no others."""
        names = tuple(servers)
        if names != self._names:
            self._names = names
            self._told.set()

    async def run(self) -> None:
        """Serve until `leave`. A dead engine is replaced by a new one.

        Raises EngineDied if the engine cannot start, and Rejected if a server refuses it while no
        other one has it.
        """
        while not self._leave.is_set():
            engine = self._make()
            description = replace(await engine.start(), node=self._config.node)
            try:
                await self._share(SharedEngine(engine, description))
            except api.EngineDied as error:
                log.error("the engine died: %s", error)
            finally:
                await engine.close()

    async def _share(self, engine: SharedEngine) -> None:
        """Keep the engine joined until `leave`. Raises EngineDied and Rejected."""
        tasks = [
            asyncio.create_task(one)
            for one in (
                engine.pass_events(),
                engine.report_forever(),
                self._drained(engine),
                self._follow(engine),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drained(self, engine: SharedEngine) -> None:
        """Return once `leave` was called and the last op has ended, or after DRAIN_S."""
        await self._leave.wait()
        try:
            async with asyncio.timeout(DRAIN_S):
                await engine.drained()
        except TimeoutError:
            log.warning("some ops still ran after %g s: they are dropped", DRAIN_S)

    async def _follow(self, engine: SharedEngine) -> None:
        """Stay joined to a server at each address of each name. Raises Rejected."""
        known: set[Address] = set()
        by_name: dict[Address, set[Address]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._told.clear()
                    names = self._names
                    found = await asyncio.gather(*(_addresses(*name) for name in names))
                    by_name |= {name: at for name, at in zip(names, found, strict=True) if at}
                    now = {at for name in names for at in by_name.get(name, ())}
                    known.intersection_update(now)
                    known |= now
                    for at in now - self._followed:
                        self._followed.add(at)
                        group.create_task(self._stay_joined(engine, at, known))
                    are_found = all(name in by_name for name in names)
                    await self._told_within(LOOK_UP_S if are_found else PAUSES_S[0])
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _told_within(self, seconds: float) -> None:
        """Wait until there are other names, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()

    async def _stay_joined(self, engine: SharedEngine, at: Address, known: set[Address]) -> None:
        """Join the server at this address again and again, while its name is `known` to have it."""
        failures = 0
        try:
            while at in known:
                try:
                    async with asyncio.timeout(HANDSHAKE_S):
                        connection = await self._join(engine.description, at)
                    if connection is not None:
                        failures = 0
                        await self._serve(engine, connection, at)
                        continue
                except (OSError, TimeoutError) as error:
                    level = logging.DEBUG if failures else logging.WARNING  # it tries for ever
                    log.log(level, "cannot reach the server: %s", error)
                except Rejected as error:
                    self._refusing.add(at)
                    if self._is_unwanted():
                        raise
                    log.error("the server at %s:%d refuses the engine: %s", *at, error)
                    failures = len(PAUSES_S)
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
        finally:
            self._followed.discard(at)
            self._refusing.discard(at)

    def _is_unwanted(self) -> bool:
        """Whether every server refuses the engine."""
        are_all_found = len(self._followed) >= len(set(self._names))
        return not self._joined and are_all_found and self._refusing >= self._followed

    async def _join(self, description: api.Description, at: Address) -> FrameConnection | None:
        """A connection to the server, which takes the engine; None if it has it already, from
        another one of its addresses. Raises OSError and Rejected.
        """
        connection = FrameConnection(*await asyncio.open_connection(*at))
        try:
            server = await respond(connection, self._config.key, self._config.name)
            if server in self._servers.values():
                await connection.close()
                return None
            self._servers[at] = server
            connection.send(
                wire.Describe(
                    replace(description, tokenizer=None), _tokenizer(description), self._process
                )
            )
            match await connection.receive():
                case [wire.Admitted()]:
                    self._joined.add(at)
                    self._refusing.discard(at)
                    log.warning("engine %s joined %s:%d", self._config.name, *at)
                    connection.send(wire.Heartbeat(time.monotonic()))
                    return connection
                case [wire.Refused(message)]:
                    raise Rejected(message)
        except BaseException:
            self._servers.pop(at, None)
            await connection.close()
            raise
        self._servers.pop(at, None)
        raise OSError("the server closed the connection")

    async def _serve(self, engine: SharedEngine, connection: FrameConnection, at: Address) -> None:
        """Perform verbs and send events until the connection is lost."""
        seat = engine.enter(connection.send)
        beating = asyncio.create_task(_beat(connection))
        try:
            await _hear(engine, seat, connection)
        except wire.WireError as error:
            log.error("the server sent an invalid frame: %s", error)
        finally:
            self._joined.discard(at)
            del self._servers[at]
            engine.leave(seat)
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await connection.close()


async def _hear(engine: SharedEngine, seat: ServerSeat, connection: FrameConnection) -> None:
    while True:
        try:
            async with asyncio.timeout(LOST_S):
                messages = await connection.receive()
        except TimeoutError:
            return
        for message in messages:
            if isinstance(message, wire.Refused):
                raise Rejected(message.message)
            engine.perform(seat, message)
        if not messages:
            return


async def _beat(connection: FrameConnection) -> None:
    while True:
        connection.send(wire.Heartbeat(time.monotonic()))
        await asyncio.sleep(HEARTBEAT_S)


async def _addresses(host: str, port: int) -> set[Address]:
    """Where the servers of this name are."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        log.warning("cannot find the server %s: %s", host, error)
        return set()
    return {(str(address[0]), port) for *_, address in found}


def _tokenizer(description: api.Description) -> str | None:
    path = description.tokenizer
    if path is not None and path.startswith(api.WORDS):
        return path  # it is no file
    return None if path is None else Path(path).read_text(encoding="utf-8")
