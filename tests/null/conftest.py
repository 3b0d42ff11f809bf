"""The whole server in this process, on null engines, reached over ASGI: no socket, no model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType

import httpx2
import pytest

from tests.null.asgi import Serve, Server
from weftline_engine.api import Engine
from weftline_engine.pretend.null import NullConfig, NullEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server: `await serve(NullConfig(...), ServerConfig(...), headers, engines)`."""
    async with AsyncExitStack() as stack:

        async def start(
            engine: NullConfig = NullConfig(),  # noqa: B008 - frozen
            config: ServerConfig = ServerConfig(),  # noqa: B008 - frozen
            headers: dict[str, str] | None = None,
            also: Mapping[str, Callable[[], Engine]] = MappingProxyType({}),
        ) -> Server:
            app = create_app(config, {"null": lambda: NullEngine(engine), **also})
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            http = httpx2.AsyncClient(transport=transport, base_url="http://t", headers=headers)
            await stack.enter_async_context(http)
            return Server(app, http)

        yield start
