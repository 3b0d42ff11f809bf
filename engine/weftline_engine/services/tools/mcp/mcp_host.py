"""The process that runs the tools of one MCP server.

`python -m weftline_engine.services.tools.mcp.mcp_host --fd N`: it connects, lists the tools, and
runs calls. It ends when the MCP server has ended: the weftline server then starts it again, after a
pause.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
from mcp.client import Client, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent, Tool

from weftline.contract.arguments import ArgumentReader
from weftline.contract.children import die_with, keep_only
from weftline.contract.errors import InvalidRequest
from weftline_engine import api
from weftline_engine.services.tools.json_frames import MOST_BYTES
from weftline_engine.services.tools.mcp.config import McpConfig, from_environment
from weftline_engine.services.tools.mcp.stdio import started
from weftline_engine.services.tools.mcp.tool_listing import (
    CannotServe,
    described,
    effects_of,
    listed,
    named,
)
from weftline_engine.services.tools.tool_calls import BegunCalls, Observation, failed
from weftline_engine.transport import wire

CONNECT_S = 30.0  # to start, to answer and to list
BEAT_S = 0.5
SETTLE_S = 2.0
# The most bytes of address space of this process, because the body of an HTTP response has no
# limit. Without a body the process needs 0.5 GB.
MOST_MEMORY = 2 << 30


class McpCalls:
    """The calls of one connection. `lost` gets the reason when the MCP server has ended."""

    def __init__(
        self,
        config: McpConfig,
        client: Client,
        tools: Mapping[str, Tool],
        out: asyncio.StreamWriter,
        lost: asyncio.Future[str],
    ) -> None:
        self._config = config
        self._client = client
        self._tools = tools
        self._out = out
        self._lost = lost
        self._begun = BegunCalls()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sequence = 0

    def perform(self, verb: wire.Message) -> None:
        """Perform a verb of the server. Verbs about contexts and hints have no effect on tools."""
        match verb:
            case wire.Submit(op):
                self._tell(api.Accepted, op)
                self._running[op.id] = asyncio.create_task(self._run(op))
            case wire.Cancel(op):
                if (task := self._running.pop(op, None)) is not None:
                    task.cancel()

    async def settled(self) -> None:
        """Wait until all calls have ended. They end when the connection has ended."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=SETTLE_S)

    async def _run(self, op: api.Op) -> None:
        began = time.monotonic()
        try:
            observation = await self._observe(op)
        except asyncio.CancelledError:
            self._tell(api.Failed, op, error="Cancelled", message="the op was cancelled")
            raise
        self._running.pop(op.id, None)
        usage = api.Usage(
            prompt_tokens=0, cached_tokens=0, output_tokens=0, started=began, filled=began
        )
        value, reason = observation.value(), api.FinishReason.STOP
        self._tell(api.Finished, op, reason=reason, usage=usage, value=value)

    async def _observe(self, op: api.Op) -> Observation:
        name, text = str(op.inputs.get("tool")), op.text or "{}"
        if (tool := self._tools.get(name)) is None:
            return Observation("there is no such tool", is_error=True)
        reader = ArgumentReader()
        reader.feed(text)
        if not reader.is_closed:
            return Observation("ValueError: the arguments are no JSON object", is_error=True)
        effects = effects_of(self._config, tool)
        if not self._begun.begin(op.id, op.attempt, text, effects):
            return failed("the call has begun before and was not begun again", effects)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                made = await self._client.session.call_tool(tool.name, reader.value)
        except TimeoutError:
            said = f"the tool ran for more than {self._config.timeout_s:g} s and was stopped"
            return failed(said, effects)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                if not self._lost.done():
                    self._lost.set_result("the connection to the MCP server was lost")
                return failed(f"{self._lost.result()} before the tool had a result", effects)
            return Observation(f"the MCP server refused the call: {error.message}", is_error=True)
        except (ValueError, RuntimeError) as error:
            return failed(f"the MCP server sent no valid result: {str(error)[:2000]}", effects)
        return observation_of(made)

    def _tell(self, kind: type[api.Event], op: api.Op, **fields: Any) -> None:
        self._sequence += 1
        event = kind(
            op=op.id, attempt=op.attempt, sequence=self._sequence, time=time.monotonic(), **fields
        )
        self._out.write(wire.encode([event]))


def observation_of(result: CallToolResult) -> Observation:
    """The observation for a result: its texts, or else its structured content as JSON. For a part
    that is not text, it has only the part's type."""
    said = [
        one.text if isinstance(one, TextContent) else f"[{one.type}: not shown]"
        for one in result.content
    ]
    structure = result.structured_content
    if not said and structure is not None:
        said = [json.dumps(structure, ensure_ascii=False)]
    text = "\n".join(said)
    size = len(text.encode("utf-8", "replace"))
    if size > MOST_BYTES:
        what = f"it has {size:,} bytes, and {MOST_BYTES:,} are the most"
        return Observation(f"the tool's result cannot be sent: {what}", is_error=True)
    return Observation(text, is_error=result.is_error)


@asynccontextmanager
async def connected(config: McpConfig, lost: asyncio.Future[str]) -> AsyncIterator[Client]:
    """A client of the MCP server. When a command ends, `lost` gets the reason."""
    if config.url is None:
        async with Client(started(config.command, lost)) as client:
            yield client
        return
    async with httpx2.AsyncClient(headers=dict(config.headers), timeout=config.timeout_s) as http:
        transport: Transport = streamable_http_client(
            config.url, http_client=http, max_sse_event_size=MOST_BYTES
        )
        async with Client(transport) as client:
            yield client


async def serve(config: McpConfig, connection: socket.socket) -> None:
    """Connect, announce the tools or say why not, and serve until either side ends."""
    reader, writer = await asyncio.open_connection(sock=connection)
    calls: McpCalls | None = None
    try:
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_S):
                client = await stack.enter_async_context(connected(config, lost))
                tools = named(config, await listed(client))
            told = tuple(described(config, name, one) for name, one in tools.items())
            calls = McpCalls(config, client, tools, writer, lost)
            writer.write(wire.encode([_description(config, told)]))
            tasks = [asyncio.create_task(one) for one in (_hear(reader, calls), _beat(writer))]
            await asyncio.wait((tasks[0], lost), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except (Exception, BaseExceptionGroup) as error:
        said = _reason(config, error)
        if calls is None:
            writer.write(wire.encode([wire.LoadFailed(said)]))
        else:  # a broken connection over HTTP ends in this way
            print(said, file=sys.stderr, flush=True)
    with suppress(ConnectionError):  # the weftline server has ended
        if calls is not None:
            await calls.settled()
        await writer.drain()


def _description(config: McpConfig, tools: tuple[dict[str, object], ...]) -> api.Description:
    return api.Description(model=config.name, kinds=("tool",), capabilities=(), tools=tools)


async def _hear(reader: asyncio.StreamReader, calls: McpCalls) -> None:
    """Perform verbs until the weftline server closes its end."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            header = await reader.readexactly(wire.HEADER_BYTES)
            for verb in wire.decode(await reader.readexactly(wire.length(header))):
                calls.perform(verb)


async def _beat(writer: asyncio.StreamWriter) -> None:
    """Send signs of life. They stop if the event loop hangs, for example in checking a result."""
    while True:
        writer.write(wire.encode([wire.Heartbeat(time.monotonic())]))
        await asyncio.sleep(BEAT_S)


def _reason(config: McpConfig, error: BaseException) -> str:
    """One sentence for the operator, about why the MCP server cannot be used."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = config.url or config.command[0]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, TimeoutError):
        said = f"it did not answer within {CONNECT_S:g} s"
    elif isinstance(error, CannotServe | InvalidRequest):
        said = str(error)
    return f"the MCP server {config.name!r} ({where}): {said}"[:4000]


def main() -> None:
    """Serve the MCP server that the environment describes."""
    parser = argparse.ArgumentParser(
        prog="weftline_engine.services.tools.mcp.mcp_host", description=__doc__
    )
    parser.add_argument("--fd", type=int, required=True, help="socket to the weftline server")
    parser.add_argument("--name", help="the server's name; it tells processes apart in ps")
    fd = parser.parse_args().fd
    keep_only(fd)
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    die_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the weftline server decides when this ends
    config = from_environment()
    if config.url is not None:  # a command would inherit it
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, hard))
    asyncio.run(serve(config, connection))


if __name__ == "__main__":
    main()
