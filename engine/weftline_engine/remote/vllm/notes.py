"""Sends the server's hints and retention to our scheduler in vLLM's process, over a unix socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weftline_engine.transport import wire


class HintSocket:
    """The socket. Each process of vLLM that schedules connects to it before vLLM is ready."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._readers: set[asyncio.StreamWriter] = set()
        self._unsent: list[wire.Verb] = []

    @property
    def are_read(self) -> bool:
        """Whether our scheduler has connected."""
        return bool(self._readers)

    async def listen(self, path: Path) -> None:
        """Wait for schedulers at `path`, in a folder that only this user can open."""
        self._server = await asyncio.start_unix_server(self._connected, path)

    def send(self, *verbs: wire.Verb) -> None:
        """Send the verbs to every scheduler at the end of this turn of the event loop. Without a
        scheduler, nothing happens.

        Each frame wakes a thread in the process that plans vLLM's steps. The end of a call has
        three verbs, which are one frame.
        """
        if not self._readers:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += verbs

    def _flush(self) -> None:
        verbs, self._unsent = self._unsent, []
        frame = wire.encode(verbs)
        for writer in self._readers:
            writer.write(frame)

    async def close(self) -> None:
        for writer in self._readers:
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._readers.add(writer)
        try:
            await reader.read()  # a scheduler sends nothing: this ends with its process
        except ConnectionError:
            pass  # its process was killed
        finally:
            self._readers.discard(writer)
            writer.close()
