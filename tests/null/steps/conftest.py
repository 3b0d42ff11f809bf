"""The whole server in this process behind a unix socket, so that clients can stream and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

from tests.null.asgi import Serve, Server
from weftline import AsyncClient, Client


@dataclass(frozen=True)
class Socket:
    """A server and the path of its socket."""

    server: Server
    path: str

    def client(self) -> Client:
        """A synchronous client; use it in another thread than the server's."""
        return Client("http://t", transport=httpx2.AsyncHTTPTransport(uds=self.path))

    def aclient(self) -> AsyncClient:
        return AsyncClient("http://t", transport=httpx2.AsyncHTTPTransport(uds=self.path))


Listen = Callable[..., Awaitable[Socket]]


@asynccontextmanager
async def listening(app: FastAPI, path: Path) -> AsyncIterator[None]:
    """Serve `app` on a unix socket until the block ends."""
    config = uvicorn.Config(app, uds=str(path), lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
        await asyncio.sleep(0.002)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await serving


@pytest.fixture
async def listen(serve: Serve, tmp_path: Path) -> AsyncIterator[Listen]:
    """Start a server on a socket; the arguments are those of the fixture `serve`."""
    async with AsyncExitStack() as stack:

        async def start(*args: Any, **kwargs: Any) -> Socket:
            server = await serve(*args, **kwargs)
            path = tmp_path / "socket"
            await stack.enter_async_context(listening(server.app, path))
            return Socket(server, str(path))

        yield start
