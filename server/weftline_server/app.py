"""Puts the server together: engines, dispatcher, driver and routes make one FastAPI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from weftline.errors import WeftlineError
from weftline_engine.api import Engine, EngineDied
from weftline_server.config import ServerConfig
from weftline_server.http import calls, health, metrics, openai, sessions
from weftline_server.http.idempotency import Idempotency
from weftline_server.http.state import ServerState
from weftline_server.http.wire import DEFINITIONS, error_response
from weftline_server.observe.logs import CallLog
from weftline_server.observe.metrics import CountRequests, Metrics
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry
from weftline_server.schedule.dispatcher import Dispatcher

log = logging.getLogger("weftline.app")

SWEEP_S = 30.0


class _Application(FastAPI):
    """FastAPI, whose OpenAPI document also defines what the bodies of our routes are made of."""

    def openapi(self) -> dict[str, Any]:
        made = super().openapi()
        made.setdefault("components", {}).setdefault("schemas", {}).update(DEFINITIONS)
        return made


def create_app(config: ServerConfig, engines: Mapping[str, Callable[[], Engine]]) -> FastAPI:
    """The application; `engines` makes each engine by name, and again after it has died."""
    dispatcher = Dispatcher(engines, config.policy, without=config.without)
    driver = Driver(Registry(config.registry, config.without), dispatcher, config.without)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await dispatcher.start(driver)
        except (EngineDied, WeftlineError) as error:
            state.start_error = error
            await dispatcher.close()
            raise
        sweeper = asyncio.create_task(_sweep(driver))
        try:
            yield
        finally:
            state.draining = True
            sweeper.cancel()
            await driver.shut_down()
            await dispatcher.close()

    app = _Application(title="weftline", lifespan=lifespan, docs_url=None, redoc_url=None)
    measured = Metrics(driver)
    app.state = state = ServerState(config, driver, measured)
    driver.observers = (measured, CallLog(config.log_prompts))
    app.add_middleware(Idempotency, config=config.answers, max_body=config.max_body)
    app.add_middleware(CountRequests, metrics=measured)
    for module in (sessions, calls, openai, health, metrics):
        app.include_router(module.router)
    app.add_exception_handler(WeftlineError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return app


async def _sweep(driver: Driver) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        driver.sweep()


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, WeftlineError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own refusals (no such route, wrong method), in our shape."""
    assert isinstance(error, HTTPException)
    body = {"message": str(error.detail), "type": "InvalidRequest", "code": None, "param": "path"}
    return JSONResponse({"error": {**body, "call": None}}, error.status_code, error.headers)


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.exception("a bug of the server's", exc_info=error)
    return error_response(WeftlineError("the server has a bug; its log tells more"))
