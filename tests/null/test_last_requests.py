"""The order in which a server ends: what answers requests ends after what takes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import uvicorn

from weftline_engine.pretend.null import NullConfig, NullEngine
from weftline_server.app import create_app
from weftline_server.commands.http_server import DrainingServer
from weftline_server.config import ServerConfig
from weftline_server.http.state import state_of


class Membership:
    """Notes whether the server listened when it left the other servers of its store."""

    is_away = False

    def __init__(self) -> None:
        self.listened: list[bool] = []
        self.server: DrainingServer | None = None

    async def leave(self) -> None:
        assert self.server is not None
        self.listened.append(any(one.is_serving() for one in self.server.servers))


async def test_the_server_listens_no_more_when_it_leaves_the_others(tmp_path: Path) -> None:
    """A request that comes on a new connection until then is passed to another server, for which
    this one needs the database.
    """
    app = create_app(ServerConfig(), {"null": lambda: NullEngine(NullConfig())})
    config = uvicorn.Config(app, uds=str(tmp_path / "socket"), log_config=None)
    server = DrainingServer("http://t", config, app, drain_s=5.0)
    membership = Membership()
    membership.server = server
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    state_of(app).service.lifecycle.member = cast(Any, membership)
    server.drain()
    await serving
    assert membership.listened == [False]
