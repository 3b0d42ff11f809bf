"""A server that keeps its sessions in a file: what the next run of the server finds and does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.null.asgi import Server, call
from weftline_engine.null import NullConfig, NullEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.journal.store import StoreConfig

Start = Callable[..., Awaitable[Server]]


@asynccontextmanager
async def running(
    path: Path,
    engine: NullConfig = NullConfig(),  # noqa: B008 - frozen
    **settings: Any,
) -> AsyncIterator[Server]:
    """One run of a server with a store."""
    config = ServerConfig(sessions=StoreConfig(path=str(path)), **settings)
    app = create_app(config, {"null": lambda: NullEngine(engine)})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        http = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://t")
        )
        yield Server(app, http)


async def test_values_and_errors_of_an_earlier_run_are_found(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as server:
        id = await server.session()
        answer = await server.submit(
            id,
            call("one", "hello {{output:x}}", x="a"),
            call("two", "{{input:x}} again {{output:y}}", x="a", y="b"),
            call(
                "bad",
                "no json {{output:z}}",
                z={"in_out": "out", "semantic_var_id": "c", "transforms": [{"op": "json"}]},
            ),
        )
        assert answer.status_code == 200
        value = (await server.get(id, "b")).json()["value"]
        failed = (await server.get(id, "c")).json()
    async with running(tmp_path / "store") as server:
        assert (await server.get(id, "b")).json()["value"] == value
        assert (await server.get(id, "c")).json() == failed
        answer = await server.submit(id, call("more", "{{input:x}}{{output:y}}", x="b", y="d"))
        assert answer.status_code == 200
        assert (await server.get(id, "d")).json()["value"] == value
