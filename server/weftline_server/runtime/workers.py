"""Worker processes for transforms that may take long: each job has a time limit and can be killed.

A pattern of a client may take a second to compile, and a page of YAML a second to read. On the
event loop that would stop everybody. In a thread it would hold the interpreter's lock, and nothing
could end it. Jobs of several tenants take turns.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weftline.contract import transforms
from weftline.contract.errors import InvalidRequest, Overloaded, TransformFailed, WeftlineError
from weftline_server.lowering.bounds import is_large
from weftline_server.lowering.transform_host import HEADER_BYTES, frame

log = logging.getLogger("weftline.workers")

Spec = Mapping[str, Any]

INLINE_BYTES = 1 << 16  # a longer frame is encoded and decoded in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """How many processes there are, and the limits of a job.

    `limit_s` bounds the seconds of one job. `most_waiting` jobs of a tenant may wait.
    `most_patterns` different transforms of one submit may need to be compiled.
    """

    processes: int = 2
    limit_s: float = 5.0
    most_waiting: int = 10_000
    most_patterns: int = 256
    most_known: int = 4096  # specs that are remembered as valid


class Workers:
    """Runs jobs in processes, which start with the first job."""

    def __init__(self, config: WorkersConfig | None = None) -> None:
        self._config = config or WorkersConfig()
        self._idle: list[_Worker] = []
        self._starting = 0  # processes that are about to join `_all`
        self._waiting: OrderedDict[str, deque[asyncio.Future[_Worker]]] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()  # specs that are valid
        self._all: set[_Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()  # waits for killed processes

    async def check(self, tenant: str, specs: Sequence[Spec]) -> None:
        """Compile the patterns of `specs` that are not cached. Raises InvalidRequest."""
        new: dict[str, Spec] = {}
        for spec in specs:
            key = json.dumps(spec, sort_keys=True)
            if key in self._known:
                self._known.move_to_end(key)
            else:
                new[key] = spec
        if not new:
            return
        most = self._config.most_patterns
        if len(new) > most:
            raise InvalidRequest(
                f"a submit has at most {most} different transforms with patterns or YAML, and "
                f"this has {len(new)}: split it",
                param="transforms",
            )
        try:
            await self._job(tenant, {"check": list(new.values())})
        except _TooLong:
            raise InvalidRequest(
                f"the patterns of this submit take more than {self._config.limit_s:g} s to "
                "compile: use fewer or shorter ones",
                param="transforms",
            ) from None
        self._known.update(dict.fromkeys(new))
        while len(self._known) > self._config.most_known:
            self._known.popitem(last=False)

    async def apply(self, tenant: str, specs: Sequence[Spec], value: object) -> Any:
        """Apply `specs` to `value`: on the event loop if they are cheap, else in a process."""
        if not specs:
            return value
        if is_large(specs, value):
            return await self.run(tenant, specs, value)
        return transforms.run(specs, value)

    async def run(
        self,
        tenant: str,
        specs: Sequence[Spec],
        value: object,
        cases: Sequence[Spec] | None = None,
    ) -> Any:
        """Return what `transforms.run` makes of `value`. Raises TransformFailed.

        With `cases` return the number of the first predicate that holds for that, or None.
        """
        request: dict[str, Any] = {"run": list(specs), "value": value}
        if cases is not None:
            request["cases"] = list(cases)
        try:
            return await self._job(tenant, request)
        except _TooLong:
            raise TransformFailed(
                f"the transforms took more than {self._config.limit_s:g} s: shorten the text, or "
                "leave the parser to the client",
                param=str((*specs, *(cases or ()))[0].get("op")),
            ) from None

    async def close(self) -> None:
        """Kill every process. The jobs that still run fail."""
        for worker in list(self._all):
            self._kill(worker)
        self._idle.clear()
        await asyncio.gather(*self._ending)

    async def _job(self, tenant: str, request: dict[str, Any]) -> Any:
        try:
            sent = await _off_loop(_is_short(request.get("value")), frame, request)
        except (ValueError, TypeError, RecursionError) as error:
            raise TransformFailed(f"the value cannot be read as JSON: {error}") from error
        worker = await self._take(tenant)
        try:
            async with asyncio.timeout(self._config.limit_s):
                body = await worker.ask(sent)
        except TimeoutError:
            self._drop(worker)
            raise _TooLong from None
        except (asyncio.IncompleteReadError, ConnectionError):
            self._drop(worker)
            raise TransformFailed(
                "the worker process of this transform ended: shorten the text"
            ) from None
        except BaseException:  # the call was cancelled: the next job must not get its answer
            self._drop(worker)
            raise
        self._give_back(worker)
        made = await _off_loop(len(body) <= INLINE_BYTES, json.loads, body)
        if "error" in made:
            raise WeftlineError.from_body(made, TransformFailed.status)
        return made["value"]

    async def _take(self, tenant: str) -> _Worker:
        """Return a worker for one job. Waiting tenants get workers in turn."""
        if self._idle:
            return self._idle.pop()
        if len(self._all) + self._starting < self._config.processes:
            return await self._start()
        waiting = self._waiting.setdefault(tenant, deque())
        if len(waiting) >= self._config.most_waiting:
            raise Overloaded(
                f"{len(waiting)} transforms wait already: try again later", retry_after_s=1.0
            )
        turn: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            raise

    async def _start(self) -> _Worker:
        self._starting += 1
        try:
            worker = await _Worker.start()
        finally:
            self._starting -= 1
        self._all.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        turn = self._next_turn()
        if turn is not None:
            turn.set_result(worker)
        else:
            self._idle.append(worker)

    def _drop(self, worker: _Worker) -> None:
        """Kill a worker. If a job waits, another process takes its place."""
        self._kill(worker)
        if (turn := self._next_turn()) is not None:
            self._in_background(self._replace(turn))

    async def _replace(self, turn: asyncio.Future[_Worker]) -> None:
        try:
            worker = await self._start()
        except OSError as error:
            if not turn.done():
                turn.set_exception(TransformFailed(f"no worker process could be started: {error}"))
            return
        if turn.done():  # its job was cancelled meanwhile
            self._give_back(worker)
        else:
            turn.set_result(worker)

    def _kill(self, worker: _Worker) -> None:
        self._all.discard(worker)
        self._in_background(worker.end())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _next_turn(self) -> asyncio.Future[_Worker] | None:
        while self._waiting:
            tenant, waiting = self._waiting.popitem(last=False)
            while waiting:
                turn = waiting.popleft()
                if waiting:
                    self._waiting[tenant] = waiting  # behind the other tenants
                if not turn.done():
                    return turn
                self._waiting.pop(tenant, None)
        return None


class _TooLong(Exception):
    """A job ran into the time limit."""


class _Worker:
    """One worker process and the socket to it."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "weftline_server.lowering.transform_host",
                str(theirs.fileno()),
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(child, reader, writer)

    async def ask(self, request: bytes) -> bytes:
        """The answer to one request. Raises IncompleteReadError if the process ends."""
        self._writer.write(request)
        await self._writer.drain()
        size = int.from_bytes(await self._reader.readexactly(HEADER_BYTES))
        return await self._reader.readexactly(size)

    async def end(self) -> None:
        """Kill the process, even in the middle of a job, and wait until it has ended."""
        self._writer.close()
        if self._child.returncode is None:
            self._child.kill()
        await self._child.wait()


def _is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= INLINE_BYTES


async def _off_loop(inline: bool, work: Any, argument: Any) -> Any:
    if inline:
        return work(argument)
    return await asyncio.get_running_loop().run_in_executor(None, work, argument)
