"""The other host's side: runs an engine, joins a server with it, and joins again when cut off."""

from __future__ import annotations

import asyncio
import logging
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
    Line,
    Rejected,
    check_key,
    respond,
)

log = logging.getLogger("weftline.host")

PAUSES_S = (0.2, 1.0, 3.0)  # between attempts to join, then 3 s for ever
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """Where to join, as whom, and what node to be named as in health and graphs."""

    host: str
    port: int
    key: str = field(repr=False)
    name: str = "engine"
    node: str = ""

    def __post_init__(self) -> None:
        check_key(self.key)


class EngineHost:
    """Keeps one engine joined to one server until it is told to leave."""

    def __init__(self, config: HostConfig, make: Callable[[], api.Engine]) -> None:
        self._config = config
        self._make = make
        self._leave = asyncio.Event()
        self._ops: dict[str, str] = {}  # op that runs → its context
        self._contexts: set[str] = set()
        self._ended = asyncio.Event()  # perhaps the last op that ran
        self.joined = False

    def leave(self) -> None:
        """Take no new work, finish what there is, and end."""
        self._leave.set()

    async def run(self) -> None:
        """Serve until `leave`. Raises EngineDied if the engine cannot start, Rejected if the server
        does not take it."""
        while not self._leave.is_set():
            engine = self._make()
            description = replace(await engine.start(), node=self._config.node)
            events = _Events(engine)
            try:
                await self._stay_joined(engine, description, events)
            except api.EngineDied as error:
                log.error("the engine died: %s", error)  # a new one joins as a new one
            finally:
                self._ops.clear()
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
                    line = await self._join(description)
            except (OSError, TimeoutError) as error:
                log.warning("the server cannot be reached: %s", error)
                await self._pause(failures)
                failures += 1
                continue
            failures = 0
            try:
                await self._serve(engine, line, events)
            finally:
                self.joined = False
                await line.close()
                self._drop_all(engine)

    async def _join(self, description: api.Description) -> Line:
        line = Line(*await asyncio.open_connection(self._config.host, self._config.port))
        try:
            await respond(line, self._config.key, self._config.name)
            line.send(wire.Describe(replace(description, tokenizer=None), _tokenizer(description)))
            match await line.receive():
                case [wire.Admitted()]:
                    self.joined = True
                    line.send(wire.Heartbeat(time.monotonic()))
                    return line
                case [wire.Refused(message)]:
                    raise Rejected(message)
        except BaseException:
            await line.close()
            raise
        raise OSError("the server closed the connection")

    async def _serve(self, engine: api.Engine, line: Line, events: _Events) -> None:
        """Verbs down, events up, until the line is lost or all is done."""
        tasks = [
            asyncio.create_task(one)
            for one in (
                self._hear(engine, line),
                self._tell(line, events),
                self._beat(line),
                self._wait_to_leave(line),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an engine that died, or a word that is none
        except wire.WireError as error:
            log.error("the server sent nonsense: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, engine: api.Engine, line: Line) -> None:
        while True:
            try:
                async with asyncio.timeout(LOST_S):
                    messages = await line.receive()
            except TimeoutError:
                return
            for message in messages:
                self._perform(engine, line, message)
            if not messages:
                return

    def _perform(self, engine: api.Engine, line: Line, verb: wire.Message) -> None:
        match verb:
            case wire.Submit(op):
                self._ops[op.id] = op.context
                self._contexts.add(op.context)
                engine.submit(op)
            case wire.Feed(op, offset, tokens, text, last):
                engine.feed(op, offset, text or "" if tokens is None else tokens, last)
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

    async def _tell(self, line: Line, events: _Events) -> None:
        while True:
            batch = await events.next()
            for event in batch:
                if isinstance(event, (api.Finished, api.Failed)):
                    self._ops.pop(event.op, None)
            line.send(*batch)
            self._ended.set()

    async def _beat(self, line: Line) -> None:
        while True:
            line.send(wire.Heartbeat(time.monotonic()))
            await asyncio.sleep(HEARTBEAT_S)

    async def _wait_to_leave(self, line: Line) -> None:
        """After the word to leave, end when the last op has."""
        await self._leave.wait()
        now = time.monotonic()
        line.send(
            api.Availability(op="", attempt=0, sequence=0, time=now, available=False, leaving=True)
        )
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._ops:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            log.warning("ops still ran after %g s and are given up", DRAIN_S)
        await line.writer.drain()

    def _drop_all(self, engine: api.Engine) -> None:
        """The server has given what we ran to others: end it, and keep nothing of it."""
        for op in list(self._ops):
            engine.cancel(op)
        for context in self._contexts:
            engine.free(context)
        self._ops.clear()
        self._contexts.clear()

    async def _pause(self, failures: int) -> None:
        pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        try:
            await asyncio.wait_for(self._leave.wait(), pause)
        except TimeoutError:
            return


class _Events:
    """An engine's events in a queue, so that they outlive a connection."""

    def __init__(self, engine: api.Engine) -> None:
        self._queue: asyncio.Queue[list[api.Event] | api.EngineDied] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(engine.events()))

    async def next(self) -> list[api.Event]:
        """The next step's. Raises EngineDied."""
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
    return None if path is None else Path(path).read_text(encoding="utf-8")
