"""POST /v1/chat/completions and /v1/completions: a session of one call behind OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from sse_starlette import EventSourceResponse
from starlette.responses import JSONResponse, Response

from weftline.errors import WeftlineError
from weftline.protocol import Call, Submit
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.graph import Node
from weftline_server.routes.calls import SEND_TIMEOUT_S
from weftline_server.routes.deps import ACCEPTING, DriverDep, Tenant
from weftline_server.routes.openai_types import (
    CHAT,
    TEXT,
    Answer,
    ChatRequest,
    Completion,
    CompletionRequest,
    Shape,
)
from weftline_server.routes.wire import or_disconnect, read, schema, sse
from weftline_server.session.driver import Driver
from weftline_server.session.session import Session

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post(
    "/chat/completions",
    dependencies=[ACCEPTING],
    openapi_extra=schema(ChatRequest),
    response_model=None,
)
async def chat(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """One chat completion, whole or streamed."""
    return await _complete(request, driver, tenant, await read(request, ChatRequest), CHAT)


@router.post(
    "/completions",
    dependencies=[ACCEPTING],
    openapi_extra=schema(CompletionRequest),
    response_model=None,
)
async def complete(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """One text completion, whole or streamed."""
    return await _complete(request, driver, tenant, await read(request, CompletionRequest), TEXT)


@dataclass(frozen=True, slots=True)
class _Running:
    """A submitted completion: its call, its variable, and whether the session is the request's own.

    A request that names a session leaves it open, and its call in the session's graph.
    """

    driver: Driver
    session: Session
    node: Node
    own: bool

    @property
    def variable(self) -> str:
        return self.node.writes[0]

    def outcome(self) -> tuple[FinishReason, Usage]:
        """How the call ended."""
        step = self.session.calls[self.node.id].steps[-1]
        assert step.reason is not None and step.usage is not None
        return step.reason, step.usage

    def end(self) -> None:
        """Cancel the call if it still runs; forget the session if it was made for it."""
        if self.own:
            self.driver.close(self.session)
        elif not self.session.closed:
            self.driver.cancel(self.session, self.node.id)


async def _start(driver: Driver, tenant: str, body: Completion, call: Call) -> _Running:
    body.check()
    named = body.session_id
    session = driver.open(tenant) if named is None else driver.registry.find(tenant, named)
    try:
        nodes = await driver.submit(session, Submit(session_id=session.id, calls=(call,)))
    except BaseException:
        if named is None:
            driver.close(session)
        raise
    return _Running(driver, session, nodes[0], own=named is None)


async def _complete(
    request: Request,
    driver: Driver,
    tenant: str,
    body: ChatRequest | CompletionRequest,
    shape: Shape,
) -> Response:
    running = await _start(driver, tenant, body, body.call())
    answer = Answer.new(shape, driver.dispatcher.model(body.model))
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventSourceResponse(
            _chunks(running, answer, usage), send_timeout=SEND_TIMEOUT_S, sep="\n"
        )
    try:
        reading = driver.get(running.session, running.variable)
        variable = await or_disconnect(request, reading)
        return JSONResponse(answer.whole(variable.text, *running.outcome()))
    finally:
        running.end()


async def _chunks(
    running: _Running, answer: Answer, with_usage: bool
) -> AsyncIterator[dict[str, str]]:
    """Chunks as the text comes; the call ends with the stream, whoever ends it."""

    def event(data: Any) -> dict[str, str]:
        return sse(None, data)

    try:
        yield event(answer.chunk("", first=True))
        async for chunk in running.driver.stream(running.session, running.variable):
            yield event(answer.chunk(chunk.text))
        reason, usage = running.outcome()
        yield event(answer.chunk(None, reason))
        if with_usage:
            yield event(answer.usage_chunk(usage))
        yield event("[DONE]")
    except WeftlineError as error:
        yield event(error.to_body())
    finally:
        running.end()
