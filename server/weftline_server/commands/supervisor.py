"""`weftline serve --servers N`: the parent of several servers on one port of one machine.

The parent keeps the sockets of the common port open, so that no connection is lost between two
servers of a place. It starts the engines, too, that the servers share.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from weftline.contract.errors import InvalidRequest
from weftline_server.commands.engine_processes import EngineProcesses
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.join import KEY_VARIABLE
from weftline_server.commands.server_process import (
    Address,
    ServerProcess,
    authority,
    listening,
    pause_s,
    started,
    until_ready,
)
from weftline_server.commands.settings import Settings
from weftline_server.journal.backend import is_shared

log = logging.getLogger("weftline.supervisor")

LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::", "")


def check(settings: Settings) -> None:
    """Raise InvalidRequest where several servers cannot share what they need."""
    count = settings.process.servers
    if not is_shared(settings.server.sessions.path):
        raise InvalidRequest(
            f"--servers {count} needs a store that several servers share: give "
            "--store postgresql://HOST/DATABASE",
            param="servers",
        )
    if any(table.get("store") == "memory" for table in settings.retrieval.get("store", ())):
        raise InvalidRequest(
            "a store of documents in memory would be another one in each server: use pgvector or "
            "sqlite",
            param="servers",
        )


@dataclass(slots=True)
class _Place:
    """One of the servers, and the process that is it now. `public` outlives the processes."""

    public: socket.socket
    now: ServerProcess | None = None
    failures: int = 0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Supervisor:
    """Starts servers, starts one again that has ended, and replaces them one after the other.

    `words` are those of the command line. With `address`, the private ports are its port and the
    next ones, one more than there are servers: a server is replaced by one that runs beside it.
    So are the ports on which engines join, from that of `engines_on`. The parent starts the engines
    of `specs` itself, for all servers; without `engines_on` they join on ports of the loopback.
    """

    def __init__(
        self,
        settings: Settings,
        words: Sequence[str],
        specs: Sequence[EngineSpec] = (),
        engines_on: Address | None = None,
    ) -> None:
        address = settings.server.cluster.address
        self._settings = settings
        self._words = list(words)
        self._host = settings.server.host
        self._stops = asyncio.Event()
        self._signals = 0
        self._rolling: asyncio.Task[None] | None = None
        # With --engines-on the operator has given the key, which others have, too.
        self._more = {} if engines_on else {KEY_VARIABLE: secrets.token_hex(32)}
        count = settings.process.servers
        parts = urlsplit(address)
        if address and parts.port is None:
            raise InvalidRequest(f"{address} has no port: write http://HOST:PORT", param="address")
        self._given = parts if address else None
        base = parts.port or 0
        self._free = [base + at if address else 0 for at in range(count + 1)]
        self._reserved: list[socket.socket] = []  # nobody else takes these ports
        self._gates: list[Address] = []
        if engines_on is not None:
            self._gates = [(engines_on[0], engines_on[1] + at) for at in range(count + 1)]
        elif specs:
            self._reserved = [listening(LOOPBACK, 0, shared=False) for _ in range(count + 1)]
            self._gates = [one.getsockname() for one in self._reserved]
        self._engines = EngineProcesses(
            specs, [_from_here(*one) for one in self._gates], self._more
        )
        self._port = _usable(self._host, settings.server.port)
        self._places = [_Place(self._public()) for _ in range(count)]

    async def run(self, *, until_stdin_closes: bool) -> int:
        """Serve until SIGTERM or SIGINT. SIGHUP replaces the servers, one after the other."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._roll)
        if until_stdin_closes:
            loop.add_reader(sys.stdin, self._on_stdin)
        engines = asyncio.create_task(self._engines.keep())
        starting = asyncio.gather(*(self._started(place) for place in self._places))
        try:
            return await self._serve(starting, engines)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self._end(engines)

    async def _serve(
        self, starting: asyncio.Future[list[bool]], engines: asyncio.Task[None]
    ) -> int:
        """Serve until a signal, or until a first server or an engine cannot start."""
        stopping = asyncio.create_task(self._stops.wait())
        await asyncio.wait((starting, engines, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done() or not all(starting.result()):
            return 0 if stopping.done() else 1
        self._engines.are_ready()
        self._say()
        keeping = [asyncio.create_task(self._keep(place)) for place in self._places]
        await stopping
        for task in (*keeping, *filter(None, [self._rolling])):
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        return 0

    def _public(self) -> socket.socket:
        """A socket on the common port. Raises InvalidRequest."""
        try:
            return listening(self._host, self._port, shared=True)
        except OSError as error:
            raise _not_free(self._host, self._port, error) from error

    def _say(self) -> None:
        count = len(self._places)
        found = self._places[0].now
        for line in () if found is None else found.said or ():
            print(f"weftline: {line}", file=sys.stderr)
        print(f"weftline runs {count} servers", flush=True)
        print(f"weftline serves on http://{self._host}:{self._port}", flush=True)

    def _stop(self) -> None:
        self._signals += 1
        self._stops.set()
        if self._signals > 1:  # the servers end at once at their second signal
            for place in self._places:
                if place.now is not None:
                    place.now.tell_to_end()

    def _on_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin)
            self._stop()

    def _roll(self) -> None:
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._replace_all())

    async def _replace_all(self) -> None:
        for place in self._places:
            async with place.changing:
                before = place.now
                if await self._started(place) and before is not None:
                    await self._ended(before)
                else:
                    place.now = before
                    log.error("no server was replaced: the new one did not start")
                    return
        log.warning("all %d servers were replaced", len(self._places))

    async def _keep(self, place: _Place) -> None:
        """Start a server again whenever it has ended by itself."""
        while True:
            found = place.now
            assert found is not None
            await found.process.wait()
            async with place.changing:
                if place.now is not found:
                    continue  # it was replaced
                code = found.process.returncode
                log.error("a server ended with code %s, and is started again", code)
                self._free.insert(0, found.port)
                self._gates[:0] = [] if found.gate is None else [found.gate]
                while not await self._started(place):
                    place.failures += 1
                    # The others take the connections that wait for this one, and new ones.
                    place.public.close()
                    await asyncio.sleep(pause_s(place.failures))
                    place.public = self._public()
                place.failures = 0

    async def _started(self, place: _Place) -> bool:
        """Start a server at this place, and wait until it is ready. False if it ends before."""
        with self._private() as private:
            address = self._address(private.getsockname()[1])
            gate = self._gates.pop(0) if self._gates else None
            found, ready = await started(
                self._words, place.public, private, address, gate, self._more
            )
        place.now = found
        if await until_ready(found, ready):
            return True
        self._give_back(found)
        return False

    def _private(self) -> socket.socket:
        port = self._free.pop(0)
        try:
            return listening(self._host, port, shared=False)
        except OSError as error:
            if self._given is None:
                return listening(self._host, 0, shared=False)
            raise InvalidRequest(
                f"port {port} on {self._host} is not free ({error.strerror}): the servers take the "
                f"port of --address and the {len(self._places)} next ones",
                param="address",
            ) from error

    def _address(self, port: int) -> str:
        """Where the other servers reach the one on this private port."""
        host = self._given.hostname if self._given else self._host
        if host is None or host in _EVERYWHERE:
            host = socket.gethostname()
        scheme = self._given.scheme if self._given else "http"
        return f"{scheme}://{authority(host, port)}"

    async def _ended(self, found: ServerProcess) -> None:
        await found.end(self._settings.process.drain_s)
        self._give_back(found)

    def _give_back(self, found: ServerProcess) -> None:
        """Let another server have the ports of one that has ended."""
        self._free.append(found.port if self._given else 0)
        if found.gate is not None:
            self._gates.append(found.gate)

    async def _end(self, engines: asyncio.Task[None]) -> None:
        """End the servers, whose calls need the engines, and then the engines."""
        running = [place.now for place in self._places if place.now is not None]
        await asyncio.gather(*(self._ended(one) for one in running))
        engines.cancel()
        await asyncio.gather(engines, return_exceptions=True)
        await self._engines.end()
        for one in (*(place.public for place in self._places), *self._reserved):
            one.close()


def _from_here(host: str, port: int) -> Address:
    """Where this machine reaches what listens there."""
    return (LOOPBACK if host in _EVERYWHERE else host), port


def _usable(host: str, port: int) -> int:
    """The port, or a free one for 0, which no other program has. Raises InvalidRequest.

    A socket that may share a port shares it with another program, too, so this one may not.
    """
    try:
        with listening(host, port, shared=False) as free:
            found: int = free.getsockname()[1]
            return found
    except OSError as error:
        raise _not_free(host, port, error) from error


def _not_free(host: str, port: int, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"port {port} on {host} is not free ({error.strerror}): stop the program that uses it, or "
        "choose another with --port",
        param="port",
    )
