"""The server's side of joining: a gate that listens, and an `api.Engine` for each joined engine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from weftline.contract.errors import EngineUnavailable
from weftline_engine import api
from weftline_engine.transport import wire
from weftline_engine.transport.tcp import handshake
from weftline_engine.transport.tcp.handshake import (
    HANDSHAKE_S,
    LOST_S,
    FrameConnection,
    Rejected,
    challenge,
)

log = logging.getLogger("weftline.gate")

MOST_UNPROVEN_HOSTS = 32  # connections in the handshake; further ones are closed at once

# Adds a joined engine to the server by its name. Raises an exception with a sentence for its host.
Admit = Callable[[str, api.Engine, api.Description], Awaitable[None]]


class JoinedEngine:
    """An engine at the other end of a connection.

    The engine ends with its connection. Its host joins again as a new engine, so late events of the
    old one are never read.
    """

    def __init__(
        self, connection: FrameConnection, description: api.Description, process: str = ""
    ) -> None:
        self.process = process  # of the host
        self.ended = False
        self._connection = connection
        self._description = description
        self._ahead: float | None = None  # seconds by which our clock is ahead of the host's
        self._leaving = False
        self._closing = False

    async def start(self) -> api.Description:
        return self._description

    def submit(self, op: api.Op) -> None:
        self._connection.send(wire.Submit(replace(op, hints=self._theirs(op.hints))))

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        self._connection.send(wire.Feed.of(op, offset, part, last))

    def update(self, op: str, hints: api.Hints) -> None:
        self._connection.send(wire.Update(op, self._theirs(hints)))

    def cancel(self, op: str) -> None:
        self._connection.send(wire.Cancel(op))

    def retain(self, context: str, retention: api.Retention) -> None:
        self._connection.send(wire.Retain(context, retention))

    def free(self, context: str) -> None:
        self._connection.send(wire.Free(context))

    def claim(self, claim: api.Claim) -> None:
        self._connection.send(wire.ClaimRoom(claim))

    async def events(self) -> AsyncIterator[list[api.Event]]:
        """Yield events until the host leaves. Raises EngineDied if it hangs or disconnects."""
        while True:
            try:
                async with asyncio.timeout(LOST_S):
                    messages = await self._connection.receive()
            except TimeoutError:
                reason = f"its host hangs: no heartbeat for {LOST_S:g} s"
                break
            except wire.WireError as error:
                reason = f"its host sent an invalid frame: {error}"
                break
            if not messages:
                reason = "its host disconnected"
                break
            events = [one for one in messages if isinstance(one, api.Event)]
            for message in messages:
                if isinstance(message, wire.Heartbeat):
                    self._learn_clock(message.time)
                    self._connection.send(wire.Heartbeat(time.monotonic()))
            self._leaving |= any(isinstance(e, api.Availability) and e.leaving for e in events)
            if events:
                yield [self._ours(event) for event in events]
        self.ended = True
        await self._connection.close()
        if not (self._leaving or self._closing):
            raise api.EngineDied(reason)

    async def close(self) -> None:
        self._closing = self.ended = True
        await self._connection.close()

    def _learn_clock(self, theirs: float) -> None:
        """Keep the smallest difference seen: it contains the least network delay."""
        ahead = time.monotonic() - theirs
        self._ahead = ahead if self._ahead is None else min(ahead, self._ahead)

    def _ours(self, event: api.Event) -> api.Event:
        ahead = self._ahead or 0.0
        if isinstance(event, api.Finished):
            usage = event.usage
            usage = replace(usage, started=usage.started + ahead, filled=usage.filled + ahead)
            return replace(event, usage=usage, time=event.time + ahead)
        return replace(event, time=event.time + ahead)

    def _theirs(self, hints: api.Hints) -> api.Hints:
        ahead = self._ahead or 0.0
        return replace(hints, arrival=hints.arrival - ahead, turn=hints.turn - ahead)


class JoinGate:
    """Listens for engines, checks that they hold the key, and passes them to `admit`."""

    def __init__(self, key: str, admit: Admit) -> None:
        handshake.check_key(key)
        self._key = key
        self._admit = admit
        self._run = secrets.token_hex(16)
        self._unproven = 0
        self._joined: dict[str, JoinedEngine] = {}
        self._server: asyncio.Server | None = None
        self._tokenizers = Path(tempfile.mkdtemp(prefix="weftline-tokenizers-"))

    async def listen(self, host: str, port: int) -> int:
        """Start to listen, and return the port. With `port` 0 the system chooses one."""
        self._server = await asyncio.start_server(self._enter, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._tokenizers, ignore_errors=True)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FrameConnection(reader, writer)
        if self._unproven >= MOST_UNPROVEN_HOSTS:
            await connection.close()
            return
        name = "?"
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                self._unproven += 1
                try:
                    name = await challenge(connection, self._key, self._run)
                finally:
                    self._unproven -= 1
                engine = await self._described(connection)
            self._check_name(name, engine.process)
            self._joined[name] = engine
            connection.send(wire.Admitted())
            await self._admit(name, engine, await engine.start())
        except (TimeoutError, EngineUnavailable):  # the host tries again
            await connection.close()
        except Exception as error:
            # Rejected, WireError, or an error of `admit`. The host logs it for its operator.
            log.warning("engine %r may not join: %s", name[:64], error)
            connection.send(wire.Refused(str(error)[:300]))
            await connection.close()
        else:
            log.warning("engine %s joined", name)

    def _check_name(self, name: str, process: str) -> None:
        """Raise Rejected if another host of this name is joined. A host that comes back is not."""
        other = self._joined.get(name)
        if other is not None and not other.ended and other.process != process:
            raise Rejected(
                f"an engine named {name[:64]!r} is joined already: choose another --name"
            )

    async def _described(self, connection: FrameConnection) -> JoinedEngine:
        messages: Sequence[wire.Message] = await connection.receive()
        match messages:
            case [wire.Describe(description, tokenizer, process)]:
                path = None if tokenizer is None else str(self._kept(tokenizer))
                return JoinedEngine(connection, replace(description, tokenizer=path), process)
        raise Rejected("the host did not describe its engine")

    def _kept(self, tokenizer: str) -> Path:
        """Write a host's tokenizer to a local file, one file for all equal ones, and return it."""
        data = tokenizer.encode()
        path = self._tokenizers / f"{hashlib.sha256(data).hexdigest()}.json"
        if not path.exists():
            path.write_bytes(data)
        return path
