"""The process of a function: it has no descriptor of the server, and what it prints is bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

log = logging.getLogger("weftline.functions")

MOST_SAID = 2000  # characters of what it has printed, of which the last are kept
MOST_LINES = 200  # that one process may write into the log
LINE_CHARS = 500
LAST_WORDS_S = 0.2  # until what a killed process has printed is read


class FunctionProcess:
    """A worker, a socket to it, and the end of what it has printed.

    uvloop starts a child with every descriptor of the server that can be inherited, its log and
    sockets of other tenants' children among them. `subprocess` closes them all.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        printed: Printed,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._printed = printed
        self._is_killed = False

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], limit: int, label: str | None
    ) -> FunctionProcess:
        """Start `command`, whose lines have at most `limit` bytes. With a `label`, what it prints
        is written to the log under this label.
        """
        ours, theirs = socket.socketpair()
        heard, said = os.pipe()
        printed = Printed(label)
        with theirs, os.fdopen(said, "wb") as output:
            reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
            pipe = os.fdopen(heard, "rb", 0)
            await asyncio.get_running_loop().connect_read_pipe(lambda: printed, pipe)
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - it returns when the program begins
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=output.fileno(),
                    env=environment,
                    start_new_session=True,
                )
            except BaseException:
                writer.close()
                printed.close()
                raise
        return cls(process, reader, writer, printed)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """The end of what it has printed."""
        return self._printed.text

    def ask(self, line: bytes) -> None:
        """Send a line. Raises ConnectionError."""
        self._writer.write(line)

    async def line(self) -> bytes:
        """The next line; empty if it has ended. Raises ValueError for one beyond the limit."""
        return await self._reader.readline()

    async def kill(self) -> None:
        """End it and all that it has started, and hear its last words."""
        if self._is_killed:
            return  # its id may be another's by now
        self._is_killed = True
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self.pid, signal.SIGKILL)
        self._writer.close()
        # A caller that is cancelled twice would leave a zombie without the shield.
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(None, self._process.wait))
        with suppress(TimeoutError):  # a process that has left the group may hold the pipe
            await asyncio.wait_for(self._printed.whole.wait(), LAST_WORDS_S)
        self._printed.close()


class Printed(asyncio.Protocol):
    """The end of what a process prints, and its lines in the log where they have a label."""

    def __init__(self, label: str | None) -> None:
        self.text = ""
        self.whole = asyncio.Event()  # it prints no more
        self._label = label
        self._begun = ""
        self._lines = 0
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        more = data.decode(errors="replace")
        self.text = (self.text + more)[-MOST_SAID:]
        if self._label is None:
            return
        *lines, begun = re.split(r"[\r\n]+", self._begun + more)
        self._begun = begun[:LINE_CHARS]
        for line in lines:
            self._tell(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self.whole.set()

    def close(self) -> None:
        """Hear no more of it."""
        if self._transport is not None:
            self._transport.close()

    def _tell(self, line: str) -> None:
        self._lines += 1
        if line.strip() and self._lines <= MOST_LINES:
            # repr leaves no control character that could hide the label of the line.
            log.info("function %s printed %r", self._label, line[:LINE_CHARS])
        if self._lines == MOST_LINES:
            log.warning("function %s printed %d lines: no more are shown", self._label, MOST_LINES)
