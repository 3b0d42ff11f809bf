"""`weftline serve --cluster ray`: replicas of one engine that Ray places on a cluster's nodes."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.server_process import Address
from weftline_server.runtime.service import Service

log = logging.getLogger("weftline.cluster")

TICK_S = 1.0  # seconds between two looks at the replicas
LEAVE_S = 30.0  # seconds that a leaving replica may still run calls
RETRY_S = 5.0  # seconds before a replica whose engine did not start is started again
REPLICA = "ray-"  # and a number: the name of a replica's engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How many replicas to run, and the resources of each. Raises InvalidRequest for a bad range.

    There are `least` to `most` replicas. One is added when more than `queue` calls per replica
    wait. One is removed when a replica has been idle for `idle_s` seconds. `cpus`, `gpus` and
    `resources` are what each replica takes of a node. A replica with several GPUs gets them on
    one node, for tensor parallelism in its vLLM. Each of several servers takes `server_cpus`.
    """

    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    queue: int = 8
    idle_s: float = 60.0
    server_cpus: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InvalidRequest(
                f"{self.least} to {self.most} replicas is not a range: write --replicas 1:4",
                param="replicas",
            )


def wanted(config: ClusterConfig, now: int, queued: int, idle_s: float) -> int:
    """Return how many replicas there should be.

    There are `now`, `queued` calls wait, and at least one replica has been idle for `idle_s`.
    """
    if queued > config.queue * now:
        now += 1
    elif queued == 0 and idle_s >= config.idle_s:
        now -= 1
    return max(config.least, min(now, config.most))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that describe a cluster."""
    group = parser.add_argument_group("a cluster of replicas of the engine described above")
    group.add_argument(
        "--cluster", choices=("ray",), help="what places replicas on nodes (default: no cluster)"
    )
    group.add_argument(
        "--replicas",
        metavar="N|LEAST:MOST",
        default="1",
        help="number of replicas, or the range to scale within (default: %(default)s)",
    )
    group.add_argument(
        "--replica-cpus",
        type=float,
        default=1.0,
        metavar="N",
        help="CPU cores of each replica (default: %(default)s)",
    )
    group.add_argument(
        "--replica-gpus",
        type=float,
        default=0.0,
        metavar="N",
        help="GPUs of each replica (default: %(default)s)",
    )
    group.add_argument(
        "--replica-resources",
        metavar="JSON",
        default="{}",
        help='custom Ray resources of each replica, such as {"slot": 1} (default: none)',
    )
    group.add_argument(
        "--server-cpus",
        type=float,
        default=1.0,
        metavar="N",
        help="CPU cores of each of --servers N, which run on the nodes, too (default: %(default)s)",
    )
    group.add_argument(
        "--scale-queue",
        type=int,
        default=8,
        metavar="CALLS",
        help="add a replica when more calls per replica wait than this (default: %(default)s)",
    )
    group.add_argument(
        "--scale-idle-s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="remove a replica after this many seconds without work (default: %(default)s)",
    )


def from_arguments(args: argparse.Namespace) -> ClusterConfig | None:
    """Return the cluster that the command line describes, or None. Raises InvalidRequest."""
    if args.cluster is None:
        return None
    least, _, most = args.replicas.partition(":")
    try:
        bounds = int(least), int(most or least)
        resources = {str(k): float(v) for k, v in json.loads(args.replica_resources).items()}
    except (ValueError, AttributeError):
        raise InvalidRequest(
            "write --replicas 1:4 and --replica-resources '{\"slot\": 1}'", param="replicas"
        ) from None
    return ClusterConfig(
        least=bounds[0],
        most=bounds[1],
        cpus=args.replica_cpus,
        gpus=args.replica_gpus,
        resources=resources,
        queue=args.scale_queue,
        idle_s=args.scale_idle_s,
        server_cpus=args.server_cpus,
    )


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The calls that wait, and the running calls and their tokens by the name of each engine."""

    queued: int
    running: Mapping[str, tuple[int, int]]


async def load_of(service: Service) -> FleetLoad:
    """The load of one server, which is this process."""
    status = service.engines.status()
    return FleetLoad(status.queued, {one.name: (one.running, one.tokens) for one in status.engines})


class RayReplicas:
    """Starts and ends replicas. When a node dies, Ray itself restarts its replicas elsewhere.

    `load` says what the servers have to do; None where that is not known. Replicas that are to
    `outlive` this process are found again by their names.
    """

    def __init__(
        self,
        config: ClusterConfig,
        spec: EngineSpec,
        key: str,
        load: Callable[[], Awaitable[FleetLoad | None]],
        *,
        outlive: bool = False,
    ) -> None:
        self._config = config
        self._spec = json.dumps(spec.settings())
        self._key = key
        self._load = load
        self._outlive = outlive
        self._replicas: dict[str, Any] = {}
        self._count = 0
        self._idle_since: float | None = None
        self._not_before = 0.0

    async def run(self, servers: Sequence[Address]) -> None:
        """Keep the wanted number of replicas until cancelled. They join the servers there."""
        while True:
            try:
                await self.look(servers)
            except Exception:  # without this loop no replica would ever start again
                log.exception("the replicas could not be looked at")
            await asyncio.sleep(TICK_S)

    def find(self) -> None:
        """Take over the replicas of an earlier process."""
        self._replicas = found_actors(REPLICA)
        self._count = max((number_of(name) for name in self._replicas), default=0)

    async def close(self) -> None:
        await asyncio.gather(*(self._end(name) for name in list(self._replicas)))

    async def look(self, servers: Sequence[Address]) -> None:
        """Start or end what has to be. The replicas join the servers at these addresses."""
        await self._replace_failed()
        if self._outlive:  # their servers move
            for actor in self._replicas.values():
                actor.follow.remote(servers)
        load = await self._load()
        queued = 0 if load is None else load.queued
        count = wanted(self._config, len(self._replicas), queued, self._idle_s(load))
        while len(self._replicas) < count and time.monotonic() >= self._not_before:
            self._start(servers)
        if len(self._replicas) > count and load is not None:
            self._idle_since = None
            name = min(self._replicas, key=lambda name: load.running.get(name, (0, 0)))
            await self._end(name)

    def _idle_s(self, load: FleetLoad | None) -> float:
        """Return for how many seconds at least one replica has been idle."""
        busy = 0 if load is None else sum(calls > 0 for calls, _ in load.running.values())
        if load is None or load.queued or busy == len(self._replicas):
            self._idle_since = None
            return 0.0
        self._idle_since = self._idle_since or time.monotonic()
        return time.monotonic() - self._idle_since

    def _start(self, servers: Sequence[Address]) -> None:
        import ray

        from weftline_server.cluster.ray.engine_actor import Replica

        self._count += 1
        name = f"{REPLICA}{self._count}"
        config = self._config
        options = placed(name, config.cpus, outlive=self._outlive)
        options |= {"num_gpus": config.gpus, "resources": config.resources}
        actor = ray.remote(Replica).options(**options)
        self._replicas[name] = actor.remote(servers, self._key, name, self._spec)

    async def _replace_failed(self) -> None:
        """Remove replicas that failed to start, to start new ones later. Ray restarts dead ones."""
        import ray

        for name, actor in list(self._replicas.items()):
            failure = await asked(actor.failure) or ""
            if failure:
                log.error("replica %s: %s", name, failure)
                self._not_before = time.monotonic() + RETRY_S
                ray.kill(actor)
                del self._replicas[name]

    async def _end(self, name: str) -> None:
        """Let a replica finish its calls, and release its resources."""
        await ended(name, self._replicas.pop(name), LEAVE_S)


def placed(name: str, cpus: float, *, outlive: bool) -> dict[str, Any]:
    """Ray's options of an actor that is spread over the nodes, and restarted with its node."""
    options: dict[str, Any] = {
        "num_cpus": cpus,
        "scheduling_strategy": "SPREAD",
        "max_restarts": -1,  # Ray's number for no limit
        "max_concurrency": 3,  # others answer while `leave` waits
    }
    return options | ({"name": name, "lifetime": "detached"} if outlive else {})


def found_actors(prefix: str) -> dict[str, Any]:
    """The named actors of this namespace whose names begin so."""
    import ray

    names = [name for name in ray.util.list_named_actors() if name.startswith(prefix)]
    return {name: ray.get_actor(name) for name in sorted(names, key=number_of)}


def number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


async def asked(method: Any) -> Any:
    """What a method of an actor returns, or the text of its failure; None where it does not answer
    in time, or is about to be restarted.
    """
    import ray
    from ray.exceptions import RayError

    ready, _ = await asyncio.to_thread(ray.wait, [method.remote()], timeout=0.2)
    try:
        return ray.get(ready[0]) if ready else None
    except RayError as error:
        # The error of an actor that Ray is about to restart says so.
        return None if "restart" in str(error) else " ".join(str(error).split())


async def ended(name: str, actor: Any, seconds: float) -> None:
    """Let an actor leave within these seconds, and release its resources."""
    import ray
    from ray.exceptions import RayError

    leaving = actor.leave.remote(seconds)
    await asyncio.to_thread(ray.wait, [leaving], timeout=seconds)
    try:
        ray.kill(actor)
    except RayError as error:
        log.debug("%s had already ended: %s", name, error)


def disconnect() -> None:
    import ray

    ray.shutdown()


def connect(namespace: str = "") -> str:
    """Join the Ray cluster, and return this node's address in it. Raises InvalidRequest.

    Actors that outlive this process are found in the `namespace`; without one it is a new one.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise InvalidRequest("--cluster ray needs Ray: run `pip install 'weftline[ray]'`") from None
    _require_token()
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        ray.init(
            address=address,
            namespace=namespace or f"weftline-{secrets.token_hex(8)}",
            log_to_driver=False,
            configure_logging=False,
        )
    except ConnectionError as error:
        raise InvalidRequest(
            "no Ray cluster answers: run `ray start --head`, or set RAY_ADDRESS, and use the same "
            "token here and on the cluster",
            param="cluster",
        ) from error
    if _open_to_all(ray.get_runtime_context().gcs_address):
        ray.shutdown()
        raise InvalidRequest(
            "the Ray cluster accepts connections without a token: start its nodes with "
            "RAY_AUTH_MODE=token",
            param="cluster",
        )
    return str(ray.util.get_node_ip_address())


def _require_token() -> None:
    """Raise InvalidRequest without token authentication: Ray would let any client run code."""
    default = Path.home() / ".ray" / "auth_token"
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if os.environ.get("RAY_AUTH_MODE") != "token" or not (named or default.exists()):
        raise InvalidRequest(
            "Ray's token authentication is off: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) here and on every node",
            param="cluster",
        )


def _open_to_all(address: str) -> bool:
    """Return whether the cluster accepts a client without a token, by trying it in a process."""
    without = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    environment = {key: value for key, value in os.environ.items() if key not in without}
    program = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
    with subprocess.Popen(
        [sys.executable, "-c", program, address],
        env={**environment, "RAY_AUTH_MODE": "disabled"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as trial:
        assert trial.stderr is not None
        for line in trial.stderr:
            if "Unauthenticated" in line:  # Ray would retry for 20 s
                trial.kill()
                return False
    return trial.returncode == 0
