"""POST /v1/chat/completions and /v1/completions: a session of one call behind OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from sse_starlette import EventSourceResponse
from starlette.responses import JSONResponse, Response

from weftline.errors import WeftlineError
from weftline.protocol import Submit
from weftline_engine.api import FinishReason, Usage
from weftline_server.routes.calls import SEND_TIMEOUT_S
from weftline_server.routes.deps import ACCEPTING, DriverDep, Tenant
from weftline_server.routes.openai_types import (
    CHAT,
    OUTPUT,
    TEXT,
    Answer,
    ChatRequest,
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


async def _complete(
    request: Request,
    driver: Driver,
    tenant: str,
    body: ChatRequest | CompletionRequest,
    shape: Shape,
) -> Response:
    body.check()
    call = body.call()
    session = driver.open(tenant)
    try:
        await driver.submit(session, Submit(session_id=session.id, calls=(call,)))
        answer = Answer.new(shape, driver.dispatcher.model(call.model))
        if not body.stream:
            variable = await or_disconnect(request, driver.get(session, OUTPUT))
            made = answer.whole(variable.text, *_outcome(session))
            driver.close(session)
            return JSONResponse(made)
    except BaseException:
        driver.close(session)
        raise
    usage = body.stream_options is not None and body.stream_options.include_usage
    return EventSourceResponse(
        _chunks(driver, session, answer, usage), send_timeout=SEND_TIMEOUT_S, sep="\n"
    )


def _outcome(session: Session) -> tuple[FinishReason, Usage]:
    """How the session's one call ended."""
    step = next(iter(session.calls.values())).steps[-1]
    assert step.reason is not None and step.usage is not None
    return step.reason, step.usage


async def _chunks(
    driver: Driver, session: Session, answer: Answer, with_usage: bool
) -> AsyncIterator[dict[str, str]]:
    """Chunks as the text comes; the session ends with the stream, whoever ends it."""

    def event(data: Any) -> dict[str, str]:
        return sse(None, data)

    try:
        yield event(answer.chunk("", first=True))
        async for chunk in driver.stream(session, OUTPUT):
            yield event(answer.chunk(chunk.text))
        reason, usage = _outcome(session)
        yield event(answer.chunk(None, reason))
        if with_usage:
            yield event(answer.usage_chunk(usage))
        yield event("[DONE]")
    except WeftlineError as error:
        yield event(error.to_body())
    finally:
        driver.close(session)
