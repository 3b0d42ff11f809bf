"""The process of one call inside its sandbox, and the sandbox's self-test.

`python -m weftline_engine.services.tools.sandbox_child --module M --tool T --fd N`, started by
bubblewrap. A function has `--function NAME`, and its limits in `--limits` and `--running`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import re
import socket
import sys
from pathlib import Path

from weftline.sdk.toolkit import Found, tools_in
from weftline_engine.services.functions import function_worker
from weftline_engine.services.tools import rlimits
from weftline_engine.services.tools.call import serve_call
from weftline_engine.services.tools.config import Limits

MOST_FILES = 10_000  # in /tmp and in /dev/shm; they are folders, links and files
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32


def main() -> None:
    """Become the user, import the module, and serve the call."""
    parser = argparse.ArgumentParser(
        prog="weftline_engine.services.tools.sandbox_child", description=__doc__
    )
    parser.add_argument("--module", required=True)
    parser.add_argument("--tool")
    parser.add_argument("--fd", type=int)
    parser.add_argument("--user", help="UID:GID")
    parser.add_argument("--processes", type=int, help="the most of this user namespace")
    parser.add_argument("--size", type=int, default=0, help="bytes of /tmp")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--function")
    parser.add_argument("--limits", type=json.loads, help="JSON, for a function")
    parser.add_argument("--running", type=int, help="processes of the user")
    args = parser.parse_args()
    if args.user is not None:
        if _sees_others():  # then /tmp may be the machine's own
            sys.exit("it sees processes of the system")
        for folder in ("/tmp", "/dev/shm"):
            _bound_files(folder, args.size)
        uid, gid = map(int, args.user.split(":"))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if args.processes is not None:
        rlimits.limit_processes(args.processes)
    if args.limits is not None:
        rlimits.apply(Limits(**args.limits), args.running)
    if args.check:
        if leaks := _leaks():
            sys.exit("; ".join(leaks))
        importlib.import_module(args.module)
        return
    if args.function is not None:
        function_worker.main(f"{args.module}:{args.function}", in_sandbox=True)
        return
    serve_call(lambda: _find(args.module, args.tool), socket.socket(fileno=args.fd))


def _bound_files(folder: str, size: int) -> None:
    """Bound the number of files, each of which takes a kilobyte of the kernel's memory.

    bubblewrap bounds their bytes alone. This process still has the right to, until it changes its
    user.
    """
    options = f"size={size},nr_inodes={MOST_FILES},mode=1777".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
    if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options):
        sys.exit(f"the files of {folder} cannot be bounded: {os.strerror(ctypes.get_errno())}")


def _find(module: str, tool: str) -> Found:
    found = {one.spec.function.name: one for one in tools_in(importlib.import_module(module))}
    return found[tool]


def _sees_others() -> bool:
    """Whether there are more processes than bubblewrap, this one, and one that is about to end."""
    return len([one for one in Path("/proc").iterdir() if one.name.isdecimal()]) > 3


def _leaks() -> list[str]:
    """The things that this process can reach and must not."""
    found = []
    if os.getuid() == 0:
        found.append("it runs as root")
    if re.search(r"Cap(Eff|Prm):\s*0*[1-9a-f]", Path("/proc/self/status").read_text()):
        found.append("it has capabilities")
    if [name for _, name in socket.if_nameindex() if name != "lo"]:
        found.append("it has a network")
    if _sees_others():
        found.append("it sees processes of the system")
    for folder in ("/", "/usr", "/dev", *filter(None, sys.path)):
        if os.access(folder, os.W_OK):
            found.append(f"it can write to {folder}")
    return found


if __name__ == "__main__":
    main()
