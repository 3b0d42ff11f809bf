"""Runs an engine on this machine, joins a server with it, and joins again after a disconnect."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
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

log = logging.getLogger("weftline.host")

PAUSES_S = (0.2, 1.0, 3.0)  # seconds between attempts to join; the last one repeats
DRAIN_S = 30.0  # seconds that ops may still run after `leave`


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """The server's address and key, the engine's name, and this machine's name.

    `node` is shown in health reports and session graphs. Raises ValueError for a short key.
    """

    host: str
    port: int
    key: str = field(repr=False)
    name: str = "engine"
    node: str = ""

    def __post_init__(self) -> None:
        check_key(self.key)


class EngineHost:
    """Keeps one engine joined to one server until `leave`."""

    def __init__(self, config: HostConfig, make: Callable[[], api.Engine]) -> None:
        self._config = config
        self._make = make
        self._process = secrets.token_hex(16)
        self._leave = asyncio.Event()
        self._running: set[str] = set()  # ids of ops that have not ended
        self._contexts: set[str] = set()  # ids of contexts that have not been freed
        self._ended = asyncio.Event()  # an op may have ended
        self.joined = False

    def leave(self) -> None:
        """Take no new ops, finish the running ones, and end `run`."""
        self._leave.set()

    async def run(self) -> None:
        """Serve until `leave`. A dead engine is replaced by a new one.

        Raises EngineDied if the engine cannot start, and Rejected if the server refuses it.
        """
        while not self._leave.is_set():
            engine = self._make()
            description = replace(await engine.start(), node=self._config.node)
            events = _Events(engine)
            try:
                await self._stay_joined(engine, description, events)
            except api.EngineDied as error:
                log.error("the engine died: %s", error)
            finally:
                self._running.clear()
                self._contexts.clear()
                await events.close()
                await engine.close()

    async def _stay_joined(
        self, engine: api.Engine, description: api.Description, events: _Events
    ) -> None:
        failures = 0
        while not self._leave.is_set():
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    connection = await self._join(description)
            except (OSError, TimeoutError) as error:
                log.warning("cannot reach the server: %s", error)
                await self._pause(failures)
                failures += 1
                continue
            failures = 0
            try:
                await self._serve(engine, connection, events)
            finally:
                self.joined = False
                await connection.close()
                self._drop_all(engine)

    async def _join(self, description: api.Description) -> FrameConnection:
        connection = FrameConnection(
            *await asyncio.open_connection(self._config.host, self._config.port)
        )
        try:
            await respond(connection, self._config.key, self._config.name)
            connection.send(
                wire.Describe(
                    replace(description, tokenizer=None), _tokenizer(description), self._process
                )
            )
            match await connection.receive():
                case [wire.Admitted()]:
                    self.joined = True
                    log.warning(
                        "engine %s joined %s:%d",
                        self._config.name,
                        self._config.host,
                        self._config.port,
                    )
                    connection.send(wire.Heartbeat(time.monotonic()))
                    return connection
                case [wire.Refused(message)]:
                    raise Rejected(message)
        except BaseException:
            await connection.close()
            raise
        raise OSError("the server closed the connection")

    async def _serve(
        self, engine: api.Engine, connection: FrameConnection, events: _Events
    ) -> None:
        """Perform verbs and send events until the connection is lost or the last op has ended."""
        tasks = [
            asyncio.create_task(one)
            for one in (
                self._hear(engine, connection),
                self._tell(connection, events),
                self._beat(connection),
                self._wait_to_leave(connection),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises EngineDied, Rejected or WireError
        except wire.WireError as error:
            log.error("the server sent an invalid frame: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, engine: api.Engine, connection: FrameConnection) -> None:
        while True:
            try:
                async with asyncio.timeout(LOST_S):
                    messages = await connection.receive()
            except TimeoutError:
                return
            for message in messages:
                self._perform(engine, connection, message)
            if not messages:
                return

    def _perform(self, engine: api.Engine, connection: FrameConnection, verb: wire.Message) -> None:
        match verb:
            case wire.Submit(op):
                self._running.add(op.id)
                self._contexts.add(op.context)
                engine.submit(op)
            case wire.Feed():
                engine.feed(verb.op, verb.offset, verb.part, verb.last)
            case wire.Update(op, hints):
                engine.update(op, hints)
            case wire.Cancel(op):
                engine.cancel(op)
            case wire.Retain(context, retention):
                engine.retain(context, retention)
            case wire.Free(context):
                self._contexts.discard(context)
                engine.free(context)
            case wire.Refused(message):
                raise Rejected(message)

    async def _tell(self, connection: FrameConnection, events: _Events) -> None:
        while True:
            batch = await events.next()
            for event in batch:
                if isinstance(event, (api.Finished, api.Failed)):
                    self._running.discard(event.op)
            connection.send(*batch)
            self._ended.set()

    async def _beat(self, connection: FrameConnection) -> None:
        while True:
            connection.send(wire.Heartbeat(time.monotonic()))
            await asyncio.sleep(HEARTBEAT_S)

    async def _wait_to_leave(self, connection: FrameConnection) -> None:
        """Return once `leave` was called and the last op has ended, or after DRAIN_S."""
        await self._leave.wait()
        now = time.monotonic()
        connection.send(
            api.Availability(op="", attempt=0, sequence=0, time=now, available=False, leaving=True)
        )
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._running:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            log.warning("some ops still ran after %g s: they are dropped", DRAIN_S)
        await connection.writer.drain()

    def _drop_all(self, engine: api.Engine) -> None:
        """Cancel all ops and free all contexts. The server has retried the ops on other engines."""
        for op in list(self._running):
            engine.cancel(op)
        for context in self._contexts:
            engine.free(context)
        self._running.clear()
        self._contexts.clear()

    async def _pause(self, failures: int) -> None:
        pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        try:
            await asyncio.wait_for(self._leave.wait(), pause)
        except TimeoutError:
            return


class _Events:
    """Queues an engine's events, so that they outlive a connection."""

    def __init__(self, engine: api.Engine) -> None:
        self._queue: asyncio.Queue[list[api.Event] | api.EngineDied] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(engine.events()))

    async def next(self) -> list[api.Event]:
        """Return the events of the next step. Raises EngineDied."""
        found = await self._queue.get()
        if isinstance(found, api.EngineDied):
            raise found
        return found

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, events: AsyncIterator[list[api.Event]]) -> None:
        try:
            async for batch in events:
                self._queue.put_nowait(batch)
        except api.EngineDied as error:
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(api.EngineDied("its events ended"))


def _tokenizer(description: api.Description) -> str | None:
    path = description.tokenizer
    if path is not None and path.startswith(api.WORDS):
        return path  # it is no file
    return None if path is None else Path(path).read_text(encoding="utf-8")
