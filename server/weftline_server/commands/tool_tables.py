"""Reads `[[tool]]` and `[[mcp]]` tables, and makes the factories of their engines.

Which code runs as a tool stands here only: a request names a tool, and never where its code is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from string import Template
from typing import Annotated, Any, Literal

from pydantic import Field

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.services.tools.config import ToolsConfig
from weftline_server.commands.moved_modules import present_name
from weftline_server.commands.settings import make
from weftline_server.extras import install, versions

MOST_NICENESS = 20  # the engine runs such calls only where nothing else needs the core


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTable(ToolsConfig):
    """A `[[tool]]` table, with the settings of its engine: all tools of one Python module.

    `name` is the engine's name, by default the module's.
    """

    name: str = ""
    niceness: Annotated[int, Field(ge=0, le=MOST_NICENESS)] = 10

    def __post_init__(self) -> None:
        path = None if self.path is None else self.path.expanduser().absolute()
        found = {
            "name": self.name or self.module,
            "module": present_name(self.module),
            "path": path,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def factory(self) -> Callable[[], Engine]:
        from weftline_engine.services.tools.engine import ToolEngine
        from weftline_engine.services.tools.tool_calls import BegunCalls

        begun = BegunCalls()  # one for all incarnations of the engine
        return lambda: ToolEngine(self, begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSpec:
    """An `[[mcp]]` table: the tools of one MCP server.

    A `command` is started here, and gets the variables of the environment that `env` names. A `url`
    is one of streamable HTTP; in its `headers`, `$NAME` is a variable of the environment. Models
    see the tools' names behind `prefix`, by default the name and an underscore. `tools` names those
    to serve; empty means all. `effects` says of a tool what running it twice would do, in place of
    what the MCP server says in its annotations. With `annotations = false` these do not count.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
    command: tuple[str, ...] = ()
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    prefix: str | None = None
    tools: tuple[str, ...] = ()
    effects: dict[str, Literal["none", "idempotent", "once"]] = field(default_factory=dict)
    annotations: bool = True
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0

    def __post_init__(self) -> None:
        if bool(self.command) == (self.url is not None):
            raise InvalidRequest(
                f"the MCP server {self.name!r} has either a command to start or a url", param="mcp"
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"mcp.url {self.url[:80]!r}: it begins with https:// or http://", param="mcp.url"
            )

    def factory(self) -> Callable[[], Engine]:
        """A function that makes the engine. Raises InvalidRequest."""
        from weftline_engine.services.tools.mcp.config import McpConfig
        from weftline_engine.transport.process import ProcessEngine

        if None in versions("mcp").values():
            raise InvalidRequest(f"[[mcp]] needs the package mcp: {install('mcp')}", param="mcp")
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        settings["headers"] = {name: self._filled(value) for name, value in self.headers.items()}
        settings["prefix"] = f"{self.name}_" if self.prefix is None else self.prefix
        config = McpConfig(**settings)
        return lambda: ProcessEngine(config, f"MCP server {self.name}")

    def _filled(self, value: str) -> str:
        try:
            return Template(value).substitute(os.environ)
        except (KeyError, ValueError) as error:
            raise InvalidRequest(
                f"a header of the MCP server {self.name!r} names {error}, which is not set in the "
                "environment",
                param="mcp.headers",
            ) from None


def from_tables(
    tools: Iterable[Mapping[str, Any]], servers: Iterable[Mapping[str, Any]] = ()
) -> tuple[ToolTable | McpSpec, ...]:
    """The engines of the `[[tool]]` and `[[mcp]]` tables. Raises InvalidRequest."""
    return (
        *(make(ToolTable, table, "tool.") for table in tools),
        *(make(McpSpec, table, "mcp.") for table in servers),
    )


def factories(specs: Iterable[ToolTable | McpSpec]) -> dict[str, Callable[[], Engine]]:
    """The factory of each engine by its name. Raises InvalidRequest for two of one name."""
    found: dict[str, Callable[[], Engine]] = {}
    for spec in specs:
        name = f"{'mcp' if isinstance(spec, McpSpec) else 'tool'}:{spec.name}"
        if name in found:
            raise InvalidRequest(f"two engines are called {name!r}", param="name")
        found[name] = spec.factory()
    return found
