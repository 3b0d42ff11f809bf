"""The program llama-server: where it is, and whether its build is new enough.

This module needs only the standard library.
"""

from __future__ import annotations

import re
import shutil

PROGRAM = "llama-server"
# The first build whose options and answers are those that this engine uses, of November 2025.
# Earlier ones count cached tokens elsewhere, or clear slots when another one is used.
OLDEST_BUILD = 7000
# "version: 7123 (commit)" until 2026, then "version: 0.5.0 (build 11434, commit ...)".
_VERSION = re.compile(r"\(build (\d+)|version: (\d+) ")


class ServerMissing(Exception):
    """There is no llama-server to start. The message says how to get one."""


def find_server(given: str | None) -> str:
    """The path of llama-server: that of `given`, or the one on PATH. Raises ServerMissing."""
    found = shutil.which(given or PROGRAM)
    if found is None and given is not None:
        raise ServerMissing(f"there is no program {given!r}: give the path of llama-server")
    if found is None:
        raise ServerMissing(
            f"there is no {PROGRAM} on PATH: install llama.cpp (a package of your system, a "
            "release of the project, or `make install-llama` in a checkout of weftline), or give "
            "its path with --llama-server, or the address of a running one with --connect"
        )
    return found


def build_of(text: str) -> int | None:
    """The number of a build in what `llama-server --version` prints. None if it has none, as a
    program has that was built without git."""
    found = _VERSION.search(text)
    return int(found[1] or found[2]) or None if found else None


def too_old(build: int | None) -> str:
    """Why a build cannot be used; "" if it can. One without a number is tried."""
    if build is None or build >= OLDEST_BUILD:
        return ""
    return (
        f"this {PROGRAM} is build {build}, and weftline needs build {OLDEST_BUILD} or newer: "
        "install a newer llama.cpp"
    )
