"""One engine replica as a Ray actor.

Ray places it on a node, and restarts it on another one if that node dies. Calls do not go through
Ray. They use the connection by which the replica joins the server.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

from weftline_engine.api import EngineDied
from weftline_engine.transport.tcp.handshake import Rejected
from weftline_engine.transport.tcp.join_host import Address, EngineHost, HostConfig
from weftline_server.commands.engine_spec import from_tables
from weftline_server.commands.engines import factory


class Replica:
    """Runs an engine host in a thread. After a restart it joins under the same name."""

    def __init__(self, servers: Sequence[Address], key: str, name: str, spec: str) -> None:
        """`spec` is the JSON of an EngineSpec's settings, so that nothing of ours is pickled."""
        config = HostConfig(servers=tuple(servers), key=key, name=name, node=node_name())
        (table,) = from_tables([json.loads(spec)])
        self._failure = ""
        self._host = EngineHost(config, factory(table))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def failure(self) -> str:
        """Return why the replica failed, or "" if it did not."""
        return self._failure

    def follow(self, servers: Sequence[Address]) -> None:
        """Join these servers from now on, and no others."""
        self._loop.call_soon_threadsafe(self._host.follow, servers)

    def leave(self, seconds: float) -> None:
        """Finish the running calls within `seconds`, and end."""
        self._loop.call_soon_threadsafe(self._host.leave)
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._host.run())
        except (EngineDied, Rejected) as error:
            self._failure = str(error)


def node_name() -> str:
    """Return this node's name from `ray start --node-name`, else its address."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    node = next(one for one in ray.nodes() if one["NodeID"] == own)
    return str(node.get("NodeName") or node["NodeManagerAddress"])
