"""The process of a function: it has no descriptor of the server, and what it prints is bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from weftline_engine.transport.output_log import Printed


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
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
            try:
                async with Printed.opened(label) as (printed, output):
                    process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                        command,
                        stdin=theirs.fileno(),
                        stdout=theirs.fileno(),
                        stderr=output.fileno(),
                        env=environment,
                        start_new_session=True,
                    )
            except BaseException:
                writer.close()
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
        try:
            await asyncio.shield(loop.run_in_executor(None, self._process.wait))
            await self._printed.end()
        finally:
            self._printed.close()
