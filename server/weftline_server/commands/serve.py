"""`weftline serve [MODEL]`: load an engine, and serve it until a signal says stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn

from weftline.errors import InvalidRequest
from weftline_engine.api import Engine, EngineDied
from weftline_engine.models import DEFAULT_MODEL, for_stream, resolve
from weftline_engine.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_server.app import create_app
from weftline_server.commands.server import FLUSH_S, Server
from weftline_server.commands.settings import LEVELS, Settings, load
from weftline_server.config import OPTIMISATIONS, ServerConfig
from weftline_server.logs import LogFormat, configure
from weftline_server.schedule.policy import POLICIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=DEFAULT_MODEL,
        help="a directory, a .gguf file, hf:ORG/NAME or pypi:PACKAGE (default: %(default)s)",
    )
    parser.add_argument(
        "--engine", choices=("torch", "null"), default="torch", help="torch is the embedded engine"
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
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
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
    null = parser.add_argument_group("the null engine, which has no model")
    null.add_argument("--null-mode", choices=tuple(NullMode), default=NullMode.ECHO)
    null.add_argument("--null-script", type=Path, help='JSON: [{"when": text, "reply": text}, …]')
    null.add_argument("--null-fill-s", type=float, default=0.0, help="seconds a prompt token")
    null.add_argument("--null-step-s", type=float, default=0.0, help="seconds an output token")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 1 if the engine or the port is not to be had."""
    key = args.api_key or os.environ.get("WEFTLINE_API_KEY")
    flags = {
        "host": args.host,
        "port": args.port,
        "policy": args.policy,
        "without": None if args.without is None else list(filter(None, args.without.split(","))),
        "keys": {key: "default"} if key else None,
        "log_prompts": args.log_prompts,
        "log_level": args.log_level,
        "log_format": args.log_format,
        "drain_s": args.drain_s,
    }
    settings = load(args.config, flags)
    configure(LogFormat(settings.process.log_format), settings.process.log_level)
    if settings.engines:
        raise InvalidRequest(
            "[[engine]] tables are not served yet: name the engine with --engine", param="engine"
        )
    return asyncio.run(_serve(settings, _engines(args), args.until_stdin_closes))


def _engines(args: argparse.Namespace) -> Mapping[str, Callable[[], Engine]]:
    if args.engine == "null":
        script = NullConfig.script_from(args.null_script) if args.null_script else ()
        null = NullConfig(
            mode=NullMode(args.null_mode),
            script=script,
            latency=LatencyProfile(fill_s=args.null_fill_s, step_s=args.null_step_s),
        )
        return {"null": lambda: NullEngine(null)}
    # Imported here, because the null engine serves where the embedded one is not installed.
    from weftline_engine.embedded.config import EmbeddedConfig
    from weftline_engine.process import ProcessEngine

    embedded = EmbeddedConfig(model=resolve(args.model, progress=for_stream()), dtype=args.dtype)
    return {"torch": lambda: ProcessEngine(embedded)}


async def _serve(
    settings: Settings, engines: Mapping[str, Callable[[], Engine]], until_stdin_closes: bool
) -> int:
    config = settings.server
    listener = _listen(config)
    port = listener.getsockname()[1]
    app = create_app(config, engines)
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
        await server.serve(sockets=[listener])
    finally:
        listener.close()
    error: EngineDied | None = app.state.start_error
    if error is not None:
        print(f"weftline: {error}", file=sys.stderr)
        return 1
    return 0


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
