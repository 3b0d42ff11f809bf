"""`weftline serve [MODEL]`: load an engine, and serve it until a signal says stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop
from fastapi import FastAPI

from weftline.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.models import DEFAULT_MODEL
from weftline_engine.tcp.joined import Gate
from weftline_server.app import create_app
from weftline_server.commands import cluster, engines
from weftline_server.commands.cluster import ClusterConfig
from weftline_server.commands.join import KEY_VARIABLE, address, key
from weftline_server.commands.server import FLUSH_S, Server
from weftline_server.commands.settings import LEVELS, Settings, load
from weftline_server.config import OPTIMISATIONS, ServerConfig
from weftline_server.http.state import state_of
from weftline_server.observe.logs import LogFormat, configure
from weftline_server.schedule.placement import POLICIES


@dataclass(frozen=True, slots=True)
class _Gate:
    """Where engines join (host "": where the cluster reaches this node), and who starts them."""

    host: str
    port: int
    key: str
    cluster: ClusterConfig | None = None
    spec: engines.EngineSpec | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"a directory, a .gguf file, hf:ORG/NAME or pypi:PACKAGE (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in TOML; flags go before them"
    )
    parser.add_argument("--policy", choices=tuple(POLICIES), help="default: app")
    parser.add_argument(
        "--without",
        metavar="NAMES",
        help=f"optimisations to leave out, by comma: {', '.join(sorted(OPTIMISATIONS))}",
    )
    parser.add_argument("--host", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, help="default: 8600; 0 takes a free one")
    parser.add_argument("--api-key", help="ask every client for this key (or set WEFTLINE_API_KEY)")
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="stop at the end of standard input, which comes when the starting program ends",
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        help="seconds that running calls have after SIGTERM (default: 10)",
    )
    parser.add_argument("--log-level", choices=LEVELS, help="default: warning")
    parser.add_argument(
        "--log-format",
        choices=tuple(LogFormat),
        help="json: an object a line, and a line for each call (in text from level info on)",
    )
    parser.add_argument(
        "--log-prompts",
        action="store_true",
        default=None,
        help="log what was said, too, for each call",
    )
    parser.add_argument(
        "--engines-on",
        metavar="HOST:PORT",
        help="let engines on other hosts join there, with the key in WEFTLINE_ENGINE_KEY; "
        "without MODEL and --engine only those serve",
    )
    engines.add_arguments(parser)
    cluster.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 1 if the engine or the port is not to be had."""
    api_key = args.api_key or os.environ.get("WEFTLINE_API_KEY")
    flags = {
        "host": args.host,
        "port": args.port,
        "policy": args.policy,
        "without": None if args.without is None else list(filter(None, args.without.split(","))),
        "keys": {api_key: "default"} if api_key else None,
        "log_prompts": args.log_prompts,
        "log_level": args.log_level,
        "log_format": args.log_format,
        "drain_s": args.drain_s,
    }
    settings = load(args.config, flags)
    configure(LogFormat(settings.process.log_format), settings.process.log_level)
    if settings.engines and engines.named(args):
        raise InvalidRequest(
            "the engines are named in the configuration file: leave MODEL and --engine out",
            param="engine",
        )
    specs = engines.from_tables(settings.engines) or engines.from_arguments(args)
    specs = engines.without(specs, settings.server.without)
    makers = {} if args.cluster else engines.factories(specs)
    serving = _serve(settings, makers, _gate_of(args, specs), args.until_stdin_closes)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving)


def _gate_of(args: argparse.Namespace, specs: Sequence[engines.EngineSpec]) -> _Gate | None:
    """Where engines may join, if anywhere, and the cluster whose replicas do."""
    config = cluster.from_arguments(args)
    if config is None and args.engines_on is None:
        return None
    host, port = ("", 0) if args.engines_on is None else address(args.engines_on)
    if config is None:
        return _Gate(host, port, key())
    if len(specs) != 1:
        raise InvalidRequest("a cluster has replicas of one engine", param="cluster")
    own = os.environ.get(KEY_VARIABLE) or secrets.token_hex(32)
    return _Gate(host, port, own, config, specs[0])


async def _serve(
    settings: Settings,
    makers: Mapping[str, Callable[[], Engine]],
    gate: _Gate | None,
    until_stdin_closes: bool,
) -> int:
    config = settings.server
    listener = _listen(config)
    port = listener.getsockname()[1]
    app = create_app(config, makers)
    # uvicorn would log a stack trace; the operator gets the engine's one sentence.
    logging.getLogger("uvicorn.error").addFilter(
        lambda _: state_of(app).service.start_error is None
    )
    server = Server(
        f"http://{config.host}:{port}",
        uvicorn.Config(
            app,
            log_level=settings.process.log_level,
            log_config=None,  # its lines go where ours go
            access_log=False,
            timeout_graceful_shutdown=FLUSH_S,
            lifespan="on",
            ws="none",
        ),
        app,
        settings.process.drain_s,
    )
    if until_stdin_closes:
        asyncio.get_running_loop().add_reader(sys.stdin, server.on_stdin)
    try:
        async with _open(app, gate):
            await server.serve(sockets=[listener])
    except SystemExit:  # uvicorn's own, after a start that failed
        if state_of(app).service.start_error is None:
            raise
    finally:
        listener.close()
    error = state_of(app).service.start_error
    if error is not None:
        print(f"weftline: {error}", file=sys.stderr)
        return 1
    return 0


@asynccontextmanager
async def _open(app: FastAPI, opens: _Gate | None) -> AsyncIterator[None]:
    """Where engines join, while the server runs, and the cluster that starts them."""
    if opens is None:
        yield
        return
    service = state_of(app).service
    replicas, host = None, opens.host
    if opens.cluster is not None:
        assert opens.spec is not None
        replicas = cluster.RayCluster(opens.cluster, opens.spec, service)
        host = host or await replicas.connect()
    gate = Gate(opens.key, service.join)
    try:
        port = await gate.listen(host, opens.port)
    except OSError as error:
        raise InvalidRequest(
            f"engines cannot join on {host}:{opens.port} ({error.strerror}): choose another "
            "--engines-on",
            param="engines_on",
        ) from error
    print(f"weftline takes engines on {host}:{port}", flush=True)
    keeping = None
    if replicas is not None:
        keeping = asyncio.create_task(replicas.run(host, port, opens.key))
    try:
        yield
    finally:
        if replicas is not None and keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await replicas.close()
        await gate.close()


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without it every answer waits 44 ms for
    # the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"port {config.port} on {config.host} is not free ({error.strerror}): "
            "stop what uses it, or choose another with --port",
            param="port",
        ) from error
    return listener
