"""The whole server in this process, for tests: an app, an HTTP client, and calls as they are on the
wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastapi import FastAPI

from weftline_engine.api import Engine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.state import state_of
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.service import Service
from weftline_server.schedule.dispatcher import Dispatcher


class Server:
    """An app under test and an HTTP client for it."""

    def __init__(self, app: FastAPI, http: httpx2.AsyncClient) -> None:
        self.app = app
        self.http = http

    @property
    def service(self) -> Service:
        """The service that the routes talk to."""
        return state_of(self.app).service

    @property
    def driver(self) -> Driver:
        """The driver behind the service, for tests that look inside."""
        return self.service._driver

    @property
    def waiting(self) -> int:
        """How many variables have readers that wait."""
        return len(self.driver.readers._signals)

    async def session(self) -> str:
        answer = await self.http.post("/v1/session")
        return str(answer.json()["session_id"])

    async def submit(self, session: str, *calls: dict[str, Any], **more: Any) -> httpx2.Response:
        body = {"session_id": session, "calls": calls, **more}
        return await self.http.post("/v1/submit", json=body)

    async def get(self, session: str, variable: str, **more: Any) -> httpx2.Response:
        body = {"session_id": session, "semantic_var_id": variable, **more}
        return await self.http.post("/v1/get", json=body)

    async def graph(self, session: str) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.http.get(f"/v1/session/{session}/graph")).json()
        return answer


Serve = Callable[..., Awaitable[Server]]


@asynccontextmanager
async def served(name: str, engine: Callable[[], Engine]) -> AsyncIterator[Server]:
    """A server with one engine, inside the block."""
    app = create_app(ServerConfig(), {name: engine})
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://t", timeout=300
        ) as http:
            yield Server(app, http)


def running(dispatcher: Dispatcher) -> dict[str, tuple[int, int]]:
    """For each engine how many primitives it runs, and the sum of their tokens."""
    works = {member.name: member.ops.works.values() for member in dispatcher.members}
    return {name: (len(some), sum(one.tokens for one in some)) for name, some in works.items()}


def call(name: str, prompt: Any, **variables: Any) -> dict[str, Any]:
    """Build a call as it is on the wire. `x="v1"` reads variable v1; `x={...}` is a whole
    placeholder.
    """
    placeholders = []
    for key, bound in variables.items():
        if isinstance(bound, dict):
            placeholders.append({"name": key, **bound})
        else:
            way = "out" if f"{{{{output:{key}}}}}" in str(prompt) else "in"
            placeholders.append({"name": key, "in_out": way, "semantic_var_id": bound})
    return {"name": name, "prompt": prompt, "placeholders": placeholders}
