"""An MCP server on standard input and output, with two tools. `mcp_agent.py` starts it."""

from __future__ import annotations

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("stock", log_level="ERROR")
stock = {"kettle": 7, "lamp": 0}


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def count(article: str) -> str:
    """How many of an article are there."""
    return f"{stock.get(article, 0)} of {article}"


@server.tool()
def order(article: str, number: int) -> str:
    """Order more of an article."""
    stock[article] = stock.get(article, 0) + number
    return f"{number} of {article} are ordered"


if __name__ == "__main__":
    server.run()
