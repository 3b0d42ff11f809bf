"""The kernel's limits of one call: CPU seconds, memory, files and processes."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

from weftline_engine.tools.config import Limits

_MEGABYTE = 1 << 20


def apply(limits: Limits, running: int) -> None:
    """Limit this process and all processes that it starts.

    The kernel counts all processes of the user, so `running`, the number that the user already has,
    is added to the limit.
    """
    _set(resource.RLIMIT_CPU, limits.cpu_s)
    _set(resource.RLIMIT_AS, limits.memory_mb * _MEGABYTE)
    _set(resource.RLIMIT_FSIZE, limits.file_mb * _MEGABYTE)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_NPROC, limits.processes + running)


def processes_of(uid: int) -> int:
    """How many processes a user has."""
    count = 0
    for one in Path("/proc").iterdir():
        if one.name.isdecimal():
            with suppress(OSError):
                count += one.stat().st_uid == uid
    return count


def _set(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))
