"""An agent with the tools of an MCP server. The server is a process beside it: stock_server.py.

    pip install 'mcp>=2.3'
    weftline serve qwen3:1.7b-q4 &
    python cookbook/agents/mcp_agent.py "How many kettles are there?"

A tool that its server calls read-only starts while the model still writes. The other ones run when
the model's turn has ended. Give `Client` an address to use an MCP server over HTTP.
`WEFTLINE_BASE_URL` names another weftline server.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, ToolException
from mcp import StdioServerParameters
from mcp.client import Client
from mcp_types import TextContent, Tool

from langchain_weftline import ChatWeftline, EarlyTools

QUESTION = "How many kettles are there? If there are fewer than ten, order ten."
STOCK = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).with_name("stock_server.py"))]
)


def tool_of(client: Client, found: Tool) -> StructuredTool:
    """A tool of LangChain that calls a tool of the MCP server."""

    async def run(**arguments: Any) -> str:
        result = await client.call_tool(found.name, arguments)
        text = "\n".join(one.text for one in result.content if isinstance(one, TextContent))
        if result.is_error:
            raise ToolException(text)
        return text

    return StructuredTool(
        name=found.name,
        description=found.description or "",
        args_schema=found.input_schema,
        coroutine=run,
        handle_tool_error=True,  # the model reads what went wrong, and tries again
    )


def reads(found: Tool) -> bool:
    """Whether the MCP server says that a tool changes nothing. Ask only servers you trust."""
    return found.annotations is not None and bool(found.annotations.read_only_hint)


async def answer(question: str) -> str:
    async with Client(STOCK) as client:
        listed = (await client.list_tools()).tools
        agent = create_agent(
            ChatWeftline(temperature=0, max_tokens=400),
            [tool_of(client, one) for one in listed],
            middleware=[EarlyTools([one.name for one in listed if reads(one)])],
        )
        said = await agent.ainvoke({"messages": [("user", question)]})
        for message in said["messages"]:
            if message.type == "tool":
                print(f"{message.name} ({message.status}): {message.text}")
        return str(said["messages"][-1].text)


if __name__ == "__main__":
    print(asyncio.run(answer(" ".join(sys.argv[1:]) or QUESTION)))
