"""The settings of a tool engine, and what a call of a tool may use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The niceness of a call that runs only where nothing else needs the core. The kernel's end at 19.
IDLE = 20
VARIABLE = "WEFTLINE_TOOLS"  # holds the settings in the zygote's environment
# The variables of the server's environment that a tool's process gets. Others may be secrets.
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may use. The kernel does not apply `processes` to root."""

    cpu_s: int = 60
    memory_mb: int = 2048
    processes: int = 64
    file_mb: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """The tools of one module. `preload` names modules that are imported once, before any call.

    `path` is put before Python's search path. `env` names variables of the server's environment
    that the tools may read. With `user` the calls run as that user, which needs root. `cores` are
    CPU cores; empty means all. `niceness` is the least niceness of a call's processes: where they
    and an engine need the same core, the engine gets most of it, and with IDLE all of it. With
    `sandbox` each call runs in a sandbox of bubblewrap.
    """

    name: str
    module: str
    path: Path | None = None
    preload: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    user: str | None = None
    cores: tuple[int, ...] = ()
    niceness: int = 10
    sandbox: bool = False
    limits: Limits = field(default_factory=Limits)

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """The zygote's environment: these settings, and nothing of `outer` that was not named."""
        passed = {name: outer[name] for name in (*PASSED, *self.env) if name in outer}
        if self.sandbox:  # the server's folder may hold secrets, and is not on the path then
            passed["PYTHONSAFEPATH"] = "1"
        return {**passed, VARIABLE: json.dumps(asdict(self), default=str)}


def from_environment() -> ToolsConfig:
    """The settings that `environment` wrote. They are removed, so that a call cannot read them."""
    fields = json.loads(os.environ.pop(VARIABLE))
    for name in ("preload", "env", "cores"):
        fields[name] = tuple(fields[name])
    path = fields.pop("path")
    limits = Limits(**fields.pop("limits"))
    return ToolsConfig(**fields, limits=limits, path=None if path is None else Path(path))
