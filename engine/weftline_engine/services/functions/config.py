"""The settings of a function: what it is, and what one run of it may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from weftline_engine import api
from weftline_engine.services.tools.config import Limits

KIND = "function"
# The variables of the server's environment that a worker gets. Others may be secrets.
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionConfig:
    """A function `call`, written module:name. It runs in up to `workers` processes.

    A run that takes longer than `timeout_s` seconds, or whose result has more than `max_bytes`,
    ends with its process. `path` is put before Python's search path, and `env` names variables of
    the server's environment that the function may read.

    With `sandbox` each run has a process of its own in a sandbox of bubblewrap, with the limits
    `limits`. If the server runs as root, the process runs as `user`, by default as "nobody".
    """

    name: str
    call: str
    workers: int = 1
    timeout_s: float = 30.0
    max_bytes: int = 1 << 20
    path: str | None = None
    env: tuple[str, ...] = ()
    sandbox: bool = False
    user: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not _TARGET.fullmatch(self.call):
            raise ValueError(f"call {self.call!r} is not written module:name")
        if not 1 <= self.workers <= 64 or self.timeout_s <= 0 or self.max_bytes < 2:
            raise ValueError("workers are 1 to 64, and timeout_s and max_bytes are positive")

    @property
    def target(self) -> tuple[str, str]:
        """The module and the name of the function in it."""
        module, _, name = self.call.partition(":")
        return module, name

    @property
    def description(self) -> api.Description:
        """The description that its engine announces."""
        return api.Description(
            model=self.name, kinds=(KIND,), capabilities=(), max_running=self.workers
        )

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """The worker's environment: nothing of `outer` that was not named."""
        found = {name: outer[name] for name in (*PASSED, *self.env) if name in outer}
        if self.path is not None:
            found["PYTHONPATH"] = ":".join(filter(None, (self.path, found.get("PYTHONPATH"))))
        return found
