"""What the server does once it has started."""

from __future__ import annotations

import gc
import socket
from math import prod

import pytest
import uvicorn

from weftline_server.app import create_app
from weftline_server.commands.http_server import DrainingServer
from weftline_server.config import ServerConfig


async def test_collections_leave_out_what_was_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """The garbage collector looks only at objects that were made after the start, at new ones after
    50,000 of them, and at all of them a tenth as often as by default."""
    app = create_app(ServerConfig(), {})
    config = uvicorn.Config(app, log_config=None, lifespan="on", ws="none")
    config.load()
    listener = socket.create_server(("127.0.0.1", 0))
    server = DrainingServer("http://127.0.0.1", config, app, drain_s=0.0)
    server.lifespan = config.lifespan_class(config)
    gc.unfreeze()
    before = gc.get_threshold()
    try:
        await server.startup(sockets=[listener])
        assert gc.get_freeze_count() > len(gc.get_objects())
        young, middle, full = gc.get_threshold()
        assert (young, young * middle * full) == (50_000, 10 * prod(before))
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        await server.shutdown(sockets=[listener])
    assert "weftline serves on" in capsys.readouterr().out
