"""The tools of an MCP server: their list, their names here, and what is announced of them."""

from __future__ import annotations

import re
from typing import cast

from mcp.client import Client
from mcp_types import Tool

from weftline.contract.tools import Function
from weftline.sdk.toolkit import Effects, ToolSpec
from weftline_engine.services.tools.mcp.config import McpConfig

MOST_PARTS = 100  # of the list of tools
_STRANGE = re.compile(r"[^A-Za-z0-9_.\-]")


class CannotServe(Exception):
    """The tools cannot be served; the message is for the operator."""


async def listed(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PARTS):
        part = await client.list_tools(cursor=cursor)
        found += part.tools
        cursor = part.next_cursor
        if cursor is None:
            break
    return found


def effects_of(config: McpConfig, tool: Tool) -> str:
    """What running the tool twice would do, as the operator or else the MCP server states it."""
    if (said := config.effects.get(tool.name)) is not None:
        return said
    hints = tool.annotations if config.annotations else None
    if hints is not None and hints.read_only_hint:
        return "none"
    return "idempotent" if hints is not None and hints.idempotent_hint else "once"


def named(config: McpConfig, listed: list[Tool]) -> dict[str, Tool]:
    """The tools to serve, by the names that models see. Raises CannotServe."""
    known = {one.name for one in listed}
    if missing := sorted({*config.tools, *config.effects} - known):
        raise CannotServe(f"it has no tool {missing[0]!r}, only {', '.join(sorted(known))}")
    found: dict[str, Tool] = {}
    for one in listed:
        if config.tools and one.name not in config.tools:
            continue
        name = config.prefix + _STRANGE.sub("_", one.name)
        if name in found:
            raise CannotServe(f"two of its tools would be called {name!r}: name those to serve")
        found[name] = one
    return found


def described(config: McpConfig, name: str, tool: Tool) -> dict[str, object]:
    """The tool as an engine announces it. Raises ValueError and InvalidRequest."""
    function = Function(name=name, description=tool.description, parameters=tool.input_schema)
    effects = cast(Effects, effects_of(config, tool))
    spec = ToolSpec(function, effects, config.timeout_s, streams=False)
    return spec.told()
