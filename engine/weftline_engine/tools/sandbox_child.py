"""The process of one call inside its sandbox, and the sandbox's self-test.

`python -m weftline_engine.tools.sandbox_child --module M --tool T --fd N`, started by bubblewrap. A
function has `--function NAME`, and its limits in `--limits` and `--running`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import sys
from pathlib import Path

from weftline.sdk.toolkit import Found, tools_in
from weftline_engine.functions import worker
from weftline_engine.tools import rlimits
from weftline_engine.tools.call import serve_call
from weftline_engine.tools.config import Limits


def main() -> None:
    """Become the user, import the module, and serve the call."""
    parser = argparse.ArgumentParser(
        prog="weftline_engine.tools.sandbox_child", description=__doc__
    )
    parser.add_argument("--module", required=True)
    parser.add_argument("--tool")
    parser.add_argument("--fd", type=int)
    parser.add_argument("--user", help="UID:GID")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--function")
    parser.add_argument("--limits", type=json.loads, help="JSON, for a function")
    parser.add_argument("--running", type=int, default=0, help="processes of the user")
    args = parser.parse_args()
    if args.user is not None:
        uid, gid = map(int, args.user.split(":"))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if args.limits is not None:
        rlimits.apply(Limits(**args.limits), args.running)
    if args.check:
        if leaks := _leaks():
            sys.exit("; ".join(leaks))
        importlib.import_module(args.module)
        return
    if args.function is not None:
        worker.main(f"{args.module}:{args.function}", in_sandbox=True)
        return
    serve_call(lambda: _find(args.module, args.tool), socket.socket(fileno=args.fd))


def _find(module: str, tool: str) -> Found:
    found = {one.spec.function.name: one for one in tools_in(importlib.import_module(module))}
    return found[tool]


def _leaks() -> list[str]:
    """The things that this process can reach and must not."""
    found = []
    if os.getuid() == 0:
        found.append("it runs as root")
    if [name for _, name in socket.if_nameindex() if name != "lo"]:
        found.append("it has a network")
    # The processes are bubblewrap and this one. A third one may be about to end.
    if len([one for one in Path("/proc").iterdir() if one.name.isdecimal()]) > 3:
        found.append("it sees processes of the system")
    for folder in ("/", "/usr", "/dev", *filter(None, sys.path)):
        if os.access(folder, os.W_OK):
            found.append(f"it can write to {folder}")
    return found


if __name__ == "__main__":
    main()
