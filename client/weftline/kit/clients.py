"""The asynchronous clients of the adapters: one for each server, on the background loop."""

from __future__ import annotations

import os

from weftline.kit.server import Server
from weftline.sdk.aclient import AsyncClient

MAX_CLIENTS = 64


class Clients:
    """One client for each server. Each one is made when it is first needed."""

    def __init__(self) -> None:
        self._clients: dict[Server, AsyncClient] = {}

    async def of(self, server: Server) -> AsyncClient:
        """The client of `server`. Only work on the background loop may use it."""
        client = self._clients.pop(server, None)
        oldest = None
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                oldest = self._clients.pop(next(iter(self._clients)))
            client = _connected(server)
        self._clients[server] = client  # the least recently used comes first
        if oldest is not None:
            await oldest.close()  # other work may ask for this server's client meanwhile
        return client

    def forget(self) -> None:
        """Start afresh after a fork: the connections belong to the parent process."""
        self._clients = {}


def _connected(server: Server) -> AsyncClient:
    return AsyncClient(
        server.base_url,
        server.api_key,
        headers=dict(server.headers),
        query=dict(server.query),
        proxy=server.proxy,
        timeout_s=server.timeout_s,
        connect_s=server.connect_s,
        max_retries=server.max_retries,
    )


CLIENTS = Clients()
os.register_at_fork(after_in_child=CLIENTS.forget)
