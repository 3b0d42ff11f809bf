"""The connection to an MCP server that is started here, over its standard input and output.

The connection in the package `mcp` reads lines of any length, and copies the whole line for each
piece that arrives. A line of 100 MB would take minutes, and all memory of the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from weftline.contract.children import die_with
from weftline_engine.services.tools.json_frames import MOST_BYTES

LEAVE_S = 1.0  # to end by itself when its input is closed

Heard: TypeAlias = SessionMessage | Exception


@asynccontextmanager
async def started(
    command: Sequence[str], lost: asyncio.Future[str]
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Heard], MemoryObjectSendStream[SessionMessage]]]:
    """Start `command`, and kill it and what it has started at the end. Raises OSError.

    When it ends or writes a line of more than MOST_BYTES, `lost` gets the reason.
    """
    host = os.getpid()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MOST_BYTES,
        start_new_session=True,
        preexec_fn=lambda: die_with(host),  # the host has one thread
    )
    heard_by, heard = anyio.create_memory_object_stream[Heard](0)
    said, said_by = anyio.create_memory_object_stream[SessionMessage](0)
    hearing = asyncio.create_task(_hear(process, heard_by, lost))
    saying = asyncio.create_task(_say(process, said_by))
    try:
        yield heard, said
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if not lost.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), LEAVE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for task in (hearing, saying):
            task.cancel()
        await asyncio.gather(hearing, saying, return_exceptions=True)
        for stream in (heard_by, heard, said, said_by):
            stream.close()


async def _hear(
    process: asyncio.subprocess.Process,
    heard: MemoryObjectSendStream[Heard],
    lost: asyncio.Future[str],
) -> None:
    """Pass on the messages that the server writes. A line that is none is passed as its error."""
    assert process.stdout is not None
    async with heard:
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # asyncio's: it is longer than the limit
                lost.set_result(f"the MCP server wrote a line of more than {MOST_BYTES:,} bytes")
                return
            if not line:
                lost.set_result("the MCP server ended")
                return
            try:
                message: Heard = SessionMessage(
                    jsonrpc_message_adapter.validate_json(line, by_name=False)
                )
            except ValueError as error:
                message = error
            await heard.send(message)


async def _say(
    process: asyncio.subprocess.Process, said: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it has ended, which the other side notices
        async for one in said:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
