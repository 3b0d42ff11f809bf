"""Reads `[[tool]]` tables, and makes the factories of their engines.

Which code runs as a tool stands here only: a request names a tool, and never where its code is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weftline.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.tools.config import Limits, ToolsConfig
from weftline_server.commands.settings import make


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A `[[tool]]` table: all tools of one Python module.

    `module` is imported with `path` before Python's search path. `name` is the engine's name, by
    default the module's. `preload` names further modules to import once, for all calls. `env` names
    the environment variables that the tools may read. `user` runs the calls as that user, which
    needs root. `cores` are CPU cores; empty means all. With `sandbox` each call is isolated by
    bubblewrap, without network. `limits` is what one call may use.
    """

    module: str
    name: str | None = None
    path: str | None = None
    preload: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    user: str | None = None
    cores: tuple[int, ...] = ()
    sandbox: bool = False
    limits: Limits = field(default_factory=Limits)

    def factory(self) -> Callable[[], Engine]:
        """A function that makes the engine."""
        from weftline_engine.tools.calls import Begun
        from weftline_engine.tools.engine import ToolEngine

        config = ToolsConfig(
            name=self.name or self.module,
            module=self.module,
            path=None if self.path is None else Path(self.path).expanduser().absolute(),
            preload=self.preload,
            env=self.env,
            user=self.user,
            cores=self.cores,
            sandbox=self.sandbox,
            limits=self.limits,
        )
        begun = Begun()  # one for all incarnations of the engine
        return lambda: ToolEngine(config, begun)


def from_tables(tables: Iterable[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """The engines of the `[[tool]]` tables. Raises InvalidRequest."""
    found = []
    for table in tables:
        if "module" not in table:
            raise InvalidRequest("a [[tool]] table needs a module", param="tool.module")
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        found.append(make(ToolSpec, values, "tool."))
    return tuple(found)


def factories(specs: Iterable[ToolSpec]) -> dict[str, Callable[[], Engine]]:
    """The factory of each engine by its name. Raises InvalidRequest for two of one name."""
    found: dict[str, Callable[[], Engine]] = {}
    for spec in specs:
        name = f"tool:{spec.name or spec.module}"
        if name in found:
            raise InvalidRequest(f"two engines are called {name!r}", param="name")
        found[name] = spec.factory()
    return found
