"""What a process prints: its end, and its lines in the log under its name, both bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import BinaryIO

log = logging.getLogger("weftline.printed")

MOST_SAID = 2000  # characters of what it has printed, of which the last are kept
MOST_LINES = 200  # that one process may write into the log
LINE_CHARS = 500
LAST_WORDS_S = 0.2  # until what an ended process has printed is read


class Printed(asyncio.Protocol):
    """The end of what a process prints, and its lines in the log where they have a label."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, label: str | None) -> AsyncGenerator[tuple[Printed, BinaryIO], None]:
        """One that listens, and the file that a process prints to, which starts in this block."""
        heard, said = os.pipe()
        printed = cls(label)
        with os.fdopen(said, "wb") as output:
            pipe = os.fdopen(heard, "rb", 0)
            await asyncio.get_running_loop().connect_read_pipe(lambda: printed, pipe)
            try:
                yield printed, output
            except BaseException:
                printed.close()
                raise

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

    async def end(self) -> None:
        """Hear the last words of a process that has ended, and no more of it."""
        try:
            with suppress(TimeoutError):  # a process that it has started may hold the pipe
                await asyncio.wait_for(self.whole.wait(), LAST_WORDS_S)
        finally:
            self.close()

    def close(self) -> None:
        """Hear no more of it."""
        if self._transport is not None:
            self._transport.close()

    def _tell(self, line: str) -> None:
        self._lines += 1
        if line.strip() and self._lines <= MOST_LINES:
            # repr leaves no control character that could hide the label of the line.
            log.info("%s printed %r", self._label, line[:LINE_CHARS])
        if self._lines == MOST_LINES:
            log.warning("%s printed %d lines: no more are shown", self._label, MOST_LINES)
