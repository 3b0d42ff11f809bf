"""The process of one call inside its sandbox, and the sandbox's self-test.

`python -m weftline_engine.services.tools.sandbox_child --module M --tool T --fd N`, started by
bubblewrap. A function has `--function NAME`, and its limits in `--limits` and `--running`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from weftline.sdk.toolkit import Found, tools_in
from weftline_engine.services.functions import function_worker
from weftline_engine.services.tools import rlimits, sandbox_files
from weftline_engine.services.tools.call import serve_call
from weftline_engine.services.tools.config import Limits


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
    parser.add_argument("--mounts", action="store_true", help="mount /tmp anew")
    parser.add_argument("--probe", action="store_true", help="try no more than that")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--function")
    parser.add_argument("--limits", type=json.loads, help="JSON, for a function")
    parser.add_argument("--running", type=int, help="processes of the user")
    args = parser.parse_args()
    if args.user is not None:
        if _sees_others():  # then /tmp may be the machine's own
            sys.exit("it sees processes of the system")
        _bound_files(sandbox_files.remount, args.size)
        uid, gid = map(int, args.user.split(":"))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    elif args.mounts:
        _bound_files(sandbox_files.mount_anew, args.size)
    if args.probe:
        return
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


def _bound_files(bound: Callable[[int], None], size: int) -> None:
    try:
        bound(size)
    except OSError as error:
        sys.exit(f"the files of /tmp cannot be bounded: {error.strerror}")


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
