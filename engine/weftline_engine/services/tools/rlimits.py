"""The kernel's limits of one call: CPU seconds, memory, files and processes."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

from weftline_engine.services.tools.config import Limits

_MEGABYTE = 1 << 20


def apply(limits: Limits, running: int | None) -> None:
    """Limit this process and all processes that it starts.

    The kernel counts all processes of the user, so `running`, the number that the user already has,
    is added to the limit. With None the number of processes is limited elsewhere.
    """
    _set(resource.RLIMIT_CPU, limits.cpu_s)
    _set(resource.RLIMIT_AS, limits.memory_mb * _MEGABYTE)
    _set(resource.RLIMIT_FSIZE, limits.file_mb * _MEGABYTE)
    _set(resource.RLIMIT_CORE, 0)
    if running is not None:
        limit_processes(limits.processes + running)


def limit_processes(most: int) -> None:
    """Limit the processes that the user may have when this process starts another."""
    _set(resource.RLIMIT_NPROC, most)


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
