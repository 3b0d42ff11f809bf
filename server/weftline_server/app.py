"""The composition root: engines, dispatcher, driver, service and routes make one application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline.contract.protocol import PROTOCOL_VERSION
from weftline_engine.api import Engine
from weftline_server.cluster.relay_attempt import Elsewhere, Missed
from weftline_server.config import ServerConfig
from weftline_server.extras import install
from weftline_server.http import (
    advice,
    health,
    page,
    retrieval,
    session_routes,
    submits,
)
from weftline_server.http import engine_list as engine_routes
from weftline_server.http.anthropic import message_routes
from weftline_server.http.anthropic.error_forms import error_form, is_messages
from weftline_server.http.direct import add_routes
from weftline_server.http.guard import Connections
from weftline_server.http.idempotency import Idempotency
from weftline_server.http.json_bodies import error_response, with_bodies
from weftline_server.http.openai import (
    completions,
    conversation_routes,
    models,
    response_routes,
    responses,
)
from weftline_server.http.reference.document import describe
from weftline_server.http.request_id import RequestIds
from weftline_server.http.state import ServerState, state_of
from weftline_server.http.unknown_routes import wrong_method, wrong_path
from weftline_server.journal.backend import is_shared
from weftline_server.journal.journal import Journal
from weftline_server.journal.kept_objects import IN_MEMORY, Performer, SqliteObjects
from weftline_server.observe.advice.advisor import Advisor
from weftline_server.observe.cost import Prices
from weftline_server.observe.logs import CallLog
from weftline_server.observe.metrics import CountRequests, Metrics
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry
from weftline_server.runtime.service import Service
from weftline_server.schedule.dispatcher import Dispatcher

if TYPE_CHECKING:
    from weftline_server.cluster.cluster_member import ClusterMember
    from weftline_server.cluster.departure import Departure
    from weftline_server.observe.spans import SessionSpans

log = logging.getLogger("weftline.app")

JOIN_POLL_S = 0.05  # between two looks whether an engine has joined

EngineMakers = Mapping[str, Callable[[], Engine]]


def create_app(config: ServerConfig, engines: EngineMakers) -> FastAPI:
    """The application. `engines` makes each engine by name, and again after it has died."""
    journal, member, departure, table = _journal(config)
    service = Service(_driver(config, engines, journal), member, departure)
    metrics = Metrics(service, Prices(config.price))
    advisor = Advisor()
    service.lifecycle.observe(metrics, CallLog(config.log_prompts), advisor)
    app = _Application(
        title="weftline",
        version=PROTOCOL_VERSION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state = ServerState(config, service, metrics, advisor, table)
    if member is not None and departure is not None:
        _join_others(app, member, departure)
    app.add_middleware(Idempotency, config=config.responses, max_body=config.max_body)
    app.add_middleware(CountRequests, metrics=metrics)
    app.add_middleware(
        Connections, most=config.max_requests, draining=lambda: service.lifecycle.draining
    )
    if config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )
    app.add_middleware(RequestIds)
    for router in (
        submits.router,  # the routes that are asked most come first
        completions.router,
        responses.router,
        response_routes.router,
        conversation_routes.router,
        message_routes.router,
        session_routes.router,
        session_routes.lists,
        models.router,
        retrieval.router,
        engine_routes.router,
        advice.router,
        health.router,
        page.docs,
    ):
        add_routes(app, router)
    if config.ui:
        add_routes(app, page.router)
    app.add_exception_handler(WeftlineError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_parameter)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _journal(
    config: ServerConfig,
) -> tuple[Journal | None, ClusterMember | None, Departure | None, Performer]:
    """The journal of the store, if there is one, the membership among the servers of the store,
    if several may use it, and the table of clients' objects. Raises InvalidRequest.
    """
    sessions = config.sessions
    if not sessions.path:
        return None, None, None, SqliteObjects(IN_MEMORY)
    if not is_shared(sessions.path):
        journal = Journal(sessions, time.monotonic)
        return journal, None, None, SqliteObjects(sessions.path, sessions.durability)
    from weftline_server.cluster.member_wiring import member_of
    from weftline_server.cluster.shared_journal import SharedJournal  # an extra has its driver

    shared = SharedJournal(sessions, time.monotonic)
    return shared, *member_of(config, shared)


def _join_others(app: FastAPI, member: ClusterMember, departure: Departure) -> None:
    """Pass requests to the other servers of the store, and answer theirs."""
    # A server of its own needs no HTTP client, which takes 0.1 s of its start.
    from weftline_server.cluster.peer_answers import PeerAnswers
    from weftline_server.cluster.peer_client import PeerClient
    from weftline_server.cluster.relay import SessionRelay

    peers = PeerClient(member.secret)
    app.state.others = PeerAnswers(member, peers)
    departure.poke = peers.poke
    app.add_middleware(SessionRelay, member=member, peers=peers)


def _driver(config: ServerConfig, engines: EngineMakers, journal: Journal | None) -> Driver:
    """The driver of all sessions, with the dispatcher of all engines."""
    dispatcher = Dispatcher(engines, config.policy, without=config.without)
    registry = Registry(config.registry, config.without, journal)
    return Driver(registry, dispatcher, config.without)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service, config = state_of(app).service, state_of(app).config
    spans = _spans(config, state_of(app).prices) if config.otlp else None
    if spans is not None:
        service.lifecycle.observe(spans)
    await service.lifecycle.start()
    own = len(service.engines.statuses)
    state_of(app).runs.adopt()
    while state_of(app).awaits_engine and len(service.engines.statuses) <= own:  # noqa: ASYNC110
        await asyncio.sleep(JOIN_POLL_S)
    try:
        yield
    finally:
        await service.lifecycle.shut_down()
        await state_of(app).background.close()
        await state_of(app).kept.close()
        if (others := state_of(app).others) is not None:
            await others.close()
        if spans is not None:
            await asyncio.get_running_loop().run_in_executor(None, spans.close)


def _spans(config: ServerConfig, prices: Prices) -> SessionSpans:
    try:
        from weftline_server.observe.spans import SessionSpans
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"--otlp needs OpenTelemetry: {install('otel')}", param="otlp"
        ) from error
    return SessionSpans(config.otlp, prices, with_texts=config.otlp_texts)


class _Application(FastAPI):
    """FastAPI whose OpenAPI document is complete."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            self.openapi_schema = describe(document, with_bodies(document))
        return self.openapi_schema


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WeftlineError)
    if isinstance(error, Elsewhere):
        return Missed(error)
    return error_response(error, request.url.path)


async def _on_parameter(request: Request, error: Exception) -> JSONResponse:
    """A query parameter of a wrong type, or beyond its bounds."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    wrong = InvalidRequest(f"{name}: {first['msg']}", param=name)
    return error_response(wrong, request.url.path)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own refusals (no such route, wrong method) in the form of our errors."""
    assert isinstance(error, HTTPException)
    message, headers = str(error.detail), error.headers
    path, routes = request.url.path, request.app.router.routes
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message, methods = wrong_method(request.method, path, routes)
        headers = {"Allow": methods}
    elif message == HTTPStatus.NOT_FOUND.phrase:
        message = wrong_path(path, routes)
    ours = {"message": message, "type": "InvalidRequest", "code": None, "param": "path"}
    ours |= {"call": None}
    is_theirs = is_messages(path)
    body = error_form(error.status_code, ours) if is_theirs else {"error": ours}
    return JSONResponse(body, error.status_code, headers)


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.exception("a bug in the server", exc_info=error)
    bug = WeftlineError("the server has a bug; its log tells more")
    return error_response(bug, request.url.path)
