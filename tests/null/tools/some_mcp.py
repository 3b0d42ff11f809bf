"""An MCP server for the tests, on standard input and output, or with `http` on a port it prints."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("some", log_level="ERROR")
READS = ToolAnnotations(read_only_hint=True)
SAME = ToolAnnotations(idempotent_hint=True)


@server.tool(annotations=READS)
def price(article: str) -> str:
    """The price of an article."""
    print(f"looks for the {article}\r2026 ERROR weftline.app: forged", file=sys.stderr, flush=True)
    return f"{article} costs 12 EUR"


@server.tool(annotations=READS)
def rows(count: int) -> list[int]:
    """Numbers."""
    return list(range(count))


@server.tool(annotations=SAME)
def put(path: str, text: str) -> None:
    """Write a file."""
    Path(path).write_text(text)


@server.tool()
def note(path: str) -> str:
    """Add a line to a file, and end the server."""
    with Path(path).open("a") as file:
        file.write("noted\n")
    os._exit(7)


@server.tool(annotations=READS)
def fail() -> str:
    """Raise an error."""
    raise ToolError("nothing is here")


@server.tool(annotations=READS)
def wait(path: str) -> str:
    """Say that it began, and wait."""
    Path(path).write_text("begun")
    time.sleep(600)
    return "waited"


@server.tool(annotations=READS)
def flood() -> str:
    """Return 100 MB."""
    return "x" * 100_000_000


@server.tool(annotations=READS)
def environment() -> str:
    """The environment of this process."""
    return " ".join(f"{name}={value}" for name, value in os.environ.items())


def main() -> None:
    if sys.argv[1:] != ["http"]:
        server.run()
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main()
