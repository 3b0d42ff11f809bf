"""`weftline serve --cluster ray --servers N`: servers and engines on the nodes of a Ray cluster.

The process of the command places them, and serves nothing itself. They outlive it: the same command
finds them again. When it is told to stop, it ends them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from weftline.contract.errors import InvalidRequest
from weftline_server.cluster.ray import ray_replicas
from weftline_server.cluster.ray.ray_replicas import ClusterConfig, FleetLoad, RayReplicas
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.server_process import LAST_S, Address
from weftline_server.commands.settings import Settings

log = logging.getLogger("weftline.cluster")

SERVER = "server-"  # and a number: the name of a server's actor
METRICS_S = 2.0  # for a server to tell its metrics
LONGEST_START_S = 600.0  # of a new server in a rolling replacement
# What a server or libpq reads of its environment, keys and passwords too.
PASSED = ("WEFTLINE_", "PG")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class RayServers:
    """Keeps servers and replicas of one engine on the nodes until a signal."""

    def __init__(
        self,
        settings: Settings,
        config: ClusterConfig,
        specs: Sequence[EngineSpec],
        words: Sequence[str],
        key: str,
    ) -> None:
        if len(specs) != 1:
            raise InvalidRequest("a cluster runs one engine: describe only one", param="cluster")
        _check(settings, config)
        self._settings = settings
        self._config = config
        self._words = list(words)
        self._servers: dict[str, Any] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self._count = 0
        self._stops = asyncio.Event()
        self._rolling: asyncio.Task[None] | None = None
        self._replicas = RayReplicas(config, specs[0], key, self._load, outlive=True)

    async def run(self, *, until_stdin_closes: bool) -> int:
        """Place until SIGTERM or SIGINT. SIGHUP replaces the servers, one after the other."""
        store = self._settings.server.sessions.path
        name = f"weftline-{hashlib.sha256(store.encode()).hexdigest()[:16]}"
        await asyncio.to_thread(ray_replicas.connect, name)
        loop = asyncio.get_running_loop()
        # Only now: Ray puts handlers of its own in their place, which end the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stops.set)
        loop.add_signal_handler(signal.SIGHUP, self._roll)
        if until_stdin_closes:
            loop.add_reader(sys.stdin, self._on_stdin)
        self._servers = ray_replicas.found_actors(SERVER)
        self._count = max(map(ray_replicas.number_of, self._servers), default=0)
        self._replicas.find()
        try:
            failure = await self._keep()
        finally:
            if self._rolling is not None:
                self._rolling.cancel()
            await asyncio.gather(*(self._end(one) for one in list(self._servers)))
            await self._replicas.close()
            await asyncio.to_thread(ray_replicas.disconnect)
        if failure:
            print(failure, file=sys.stderr)
        return 1 if failure else 0

    async def _keep(self) -> str:
        """Keep all until a signal. Return why the first servers do not start, if they do not."""
        said = False
        while not self._stops.is_set():
            await self._look()
            ready = [one for one in self._states.values() if one["ready"]]
            if not said and (failures := [*filter(None, map(_failure, self._states.values()))]):
                return failures[0]
            if not said and len(ready) == len(self._servers) == self._settings.process.servers:
                said = True
                self._say(ready)
            try:
                async with asyncio.timeout(ray_replicas.TICK_S):
                    await self._stops.wait()
            except TimeoutError:
                continue
        return ""

    async def _look(self) -> None:
        """See what runs where, and start or end what has to be."""
        if self._rolling is None or self._rolling.done():
            for _ in range(len(self._servers), self._settings.process.servers):
                self._start()
            for name in [*self._servers][self._settings.process.servers :]:
                await self._end(name)
        await self._ask()
        await self._replicas.look(self._gates())

    async def _ask(self) -> None:
        names = list(self._servers)
        found = await asyncio.gather(*(ray_replicas.asked(self._servers[n].state) for n in names))
        for name, state in zip(names, found, strict=True):
            if isinstance(state, str):  # the actor itself could not start
                log.error("%s: %s", name, state)
                self._states[name] = {"ready": False, "failure": state, "gate": None}
            elif state is not None:
                if state["failure"] and state["failure"] != _failure(self._states.get(name, {})):
                    log.error("%s on %s: %s", name, state["node"], state["failure"])
                self._states[name] = state

    def _gates(self) -> list[Address]:
        """Where engines join the servers."""
        gates = (one["gate"] for one in self._states.values())
        return [(str(host), int(port)) for host, port in filter(None, gates)]

    async def _load(self) -> FleetLoad | None:
        """What the servers have to do together, or None where one of them does not say it."""
        addresses = [one["address"] for one in self._states.values() if one["ready"]]
        key = _metrics_key(self._settings)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        queued, running = 0, dict[str, tuple[int, int]]()
        timeout = aiohttp.ClientTimeout(total=METRICS_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
                for address in addresses:
                    async with http.get(f"{address}/metrics", raise_for_status=True) as answer:
                        waiting, busy = load_in(await answer.text())
                    queued += waiting
                    for name, (calls, tokens) in busy.items():
                        before = running.get(name, (0, 0))
                        running[name] = (before[0] + calls, before[1] + tokens)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("a server does not tell its metrics: %s", error)
            return None
        return FleetLoad(queued, running)

    def _start(self) -> str:
        import ray

        from weftline_server.cluster.ray.placed_server import PlacedServer

        self._count += 1
        name = f"{SERVER}{self._count}"
        settings = self._settings
        options = ray_replicas.placed(name, self._config.server_cpus, outlive=True)
        more = {one: value for one, value in os.environ.items() if one.startswith(PASSED)}
        actor = ray.remote(PlacedServer).options(**options)
        self._servers[name] = actor.remote(
            self._words, settings.server.host, settings.server.port, settings.process.drain_s, more
        )
        return name

    async def _end(self, name: str) -> None:
        actor = self._servers.pop(name)
        await ray_replicas.ended(name, actor, self._settings.process.drain_s + LAST_S)
        self._states.pop(name, None)

    def _roll(self) -> None:
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._replace_all())

    async def _replace_all(self) -> None:
        """Place a new server, and end an old one when the new one is ready, again and again."""
        for old in list(self._servers):
            new = self._start()
            try:
                async with asyncio.timeout(LONGEST_START_S):
                    while not self._is_ready(new):  # noqa: ASYNC110 - it is on another node
                        await asyncio.sleep(ray_replicas.TICK_S)
            except TimeoutError:
                log.error("no server was replaced: the new one did not start")
                await self._end(new)
                return
            await self._end(old)
        log.warning("all %d servers were replaced", len(self._servers))

    def _is_ready(self, name: str) -> bool:
        return bool(self._states.get(name, {}).get("ready"))

    def _say(self, states: Sequence[Mapping[str, Any]]) -> None:
        for state in states:
            print(f"weftline runs a server on {state['node']}", flush=True)
        for url in dict.fromkeys(state["url"] for state in states):
            print(f"weftline serves on {url}", flush=True)

    def _on_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin)
            self._stops.set()


def load_in(metrics: str) -> tuple[int, dict[str, tuple[int, int]]]:
    """The queue of a server, and its calls and their tokens on each engine."""
    queued, calls, tokens = 0, dict[str, int](), dict[str, int]()
    for family in text_string_to_metric_families(metrics):
        for one in family.samples:
            match one.name:
                case "weftline_queue_length":
                    queued = int(one.value)
                case "weftline_running_calls":
                    calls[one.labels["engine"]] = int(one.value)
                case "weftline_running_tokens":
                    tokens[one.labels["engine"]] = int(one.value)
    return queued, {name: (count, tokens.get(name, 0)) for name, count in calls.items()}


def _metrics_key(settings: Settings) -> str | None:
    """A key that may read the metrics of all tenants, or None without one."""
    keys, chosen = settings.server.keys, settings.server.metrics_tenant
    alone = len(set(keys.values())) == 1
    return next((key for key, tenant in keys.items() if alone or tenant == chosen), None)


def _check(settings: Settings, config: ClusterConfig) -> None:
    """Raise InvalidRequest for what several servers on several nodes cannot do."""
    server = settings.server
    if server.host in _LOOPBACK:
        raise InvalidRequest(
            "servers on several nodes are reached from other nodes: give --host 0.0.0.0 and "
            "--api-key-file FILE",
            param="host",
        )
    if server.port == 0 or server.cluster.address:
        raise InvalidRequest(
            "servers on several nodes have the same --port, and each has the address of its node: "
            "give a port, and no --address",
            param="port" if server.port == 0 else "address",
        )
    if config.least < config.most and _metrics_key(settings) is None:
        raise InvalidRequest(
            "--replicas LEAST:MOST follows the servers' metrics: name the tenant who may read them "
            "with metrics_tenant in the configuration file",
            param="replicas",
        )


def _failure(state: Mapping[str, Any]) -> str:
    return str(state.get("failure", ""))
