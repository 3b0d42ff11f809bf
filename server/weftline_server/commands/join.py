"""`weftline join HOST:PORT [MODEL]`: runs an engine here for servers on other machines."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import EngineDied
from weftline_engine.own.models import DEFAULT_MODEL
from weftline_engine.transport.tcp.handshake import Rejected
from weftline_engine.transport.tcp.join_host import EngineHost, HostConfig
from weftline_server.commands import engine_spec, engines
from weftline_server.observe.logs import LogFormat, configure

KEY_VARIABLE = "WEFTLINE_ENGINE_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "server",
        metavar="HOST:PORT[,HOST:PORT]",
        help="the addresses that the servers listen on for engines (their --engines-on). A name "
        "with several addresses stands for a server at each",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a directory, a .gguf file, a short name (weftline pull --list), hf:ORG/NAME, "
        f"hf:ORG/NAME/FILE.gguf or pypi:PACKAGE (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--name",
        help="the engine's name, unique among the server's engines (default: NODE-PID)",
    )
    parser.add_argument(
        "--node", help="this machine's name in health reports and graphs (default: its host name)"
    )
    parser.add_argument("--spec", help=argparse.SUPPRESS)  # JSON, of the parent of several servers
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="leave when standard input closes, as it does when the program that started this ends",
    )
    engine_spec.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, then finish the running calls and leave."""
    configure(LogFormat.TEXT, "warning")
    servers = tuple(address(one) for one in args.server.split(","))
    node = args.node or socket.gethostname()
    name, args.name = args.name or f"{node}-{os.getpid()}", None
    config = HostConfig(servers=servers, key=key(), name=name, node=node)
    (spec,) = (
        engine_spec.from_arguments(args)
        if args.spec is None
        else engine_spec.from_tables([json.loads(args.spec)])
    )
    joining = EngineHost(config, engines.factory(spec))
    try:
        asyncio.run(_run(joining, args.until_stdin_closes))
    except (EngineDied, Rejected) as error:
        raise InvalidRequest(str(error)) from error
    return 0


async def _run(joining: EngineHost, until_stdin_closes: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, joining.leave)

    def on_stdin() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin)
            joining.leave()

    if until_stdin_closes:
        loop.add_reader(sys.stdin, on_stdin)
    await joining.run()


def key() -> str:
    """Return the key of engines from the environment. Other users can read a command line."""
    found = os.environ.get(KEY_VARIABLE, "")
    if len(found) < 16:
        raise InvalidRequest(
            f"set {KEY_VARIABLE} to the secret of at least 16 characters that the server and its "
            "engines share",
            param="key",
        )
    return found


def address(text: str) -> tuple[str, int]:
    """Parse "HOST:PORT". Raises InvalidRequest."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidRequest(f"{text!r} is not an address: write HOST:PORT", param="server")
    return host.strip("[]"), int(port)
