"""The settings of an MCP server whose tools are served."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from weftline_engine.services.tools.config import PASSED

VARIABLE = "WEFTLINE_MCP"  # holds the settings in the host's environment


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """One MCP server: a `command` to start, or a `url` of streamable HTTP with its `headers`.

    Models see the names of the MCP server's tools after `prefix`. `tools` names the tools to serve;
    empty means all. `effects` replaces the effects that the MCP server states, which count only
    with `annotations`. `env` names variables of the weftline server's environment that the command
    gets.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    env: tuple[str, ...] = ()
    prefix: str = ""
    tools: tuple[str, ...] = ()
    effects: Mapping[str, str] = field(default_factory=dict)
    annotations: bool = True
    timeout_s: float = 30.0

    module: ClassVar[str] = "weftline_engine.services.tools.mcp.mcp_host"

    def arguments(self, fd: int) -> list[str]:
        """The command line of the host. It has the name, so that hosts can be told apart in ps."""
        return ["--fd", str(fd), "--name", self.name]

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """The host's environment: these settings, and nothing of `outer` that was not named."""
        passed = {name: outer[name] for name in (*PASSED, *self.env) if name in outer}
        return {**passed, VARIABLE: json.dumps(asdict(self))}


def from_environment() -> McpConfig:
    """The settings that `environment` wrote. They are removed: a command does not see them."""
    fields = json.loads(os.environ.pop(VARIABLE))
    for name in ("command", "env", "tools"):
        fields[name] = tuple(fields[name])
    return McpConfig(**fields)
