"""POST /v1/chat/completions and /v1/completions: a session of one call behind OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from sse_starlette import EventSourceResponse
from starlette.responses import JSONResponse, Response

from weftline.errors import WeftlineError
from weftline.protocol import Submit
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.graph import Node
from weftline_server.routes.calls import SEND_TIMEOUT_S
from weftline_server.routes.deps import ACCEPTING, DriverDep, Tenant
from weftline_server.routes.openai_types import (
    CHAT,
    TEXT,
    Answer,
    ChatRequest,
    CompletionRequest,
    Shape,
)
from weftline_server.routes.provenance import Provenance, Runs
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
    runs: Runs
    session: Session
    node: Node
    own: bool

    @property
    def variable(self) -> str:
        return self.node.writes[0]

    @property
    def ids(self) -> dict[str, str]:
        """What a client needs to know to name this call's answer later."""
        return {
            "session_id": self.session.id,
            "call_id": self.node.id,
            "semantic_var_id": self.variable,
        }

    def outcome(self) -> tuple[FinishReason, Usage]:
        """How the call ended."""
        step = self.session.calls[self.node.id].steps[-1]
        assert step.reason is not None and step.usage is not None
        return step.reason, step.usage

    def end(self) -> None:
        """Cancel the call if it still runs; forget the session if it was made for it."""
        if self.own:
            self.driver.close(self.session)
            return
        if not self.session.closed:
            self.driver.cancel(self.session, self.node.id)
        self.runs.leave(self.driver, self.session)


def _runs(request: Request) -> Runs:
    state = request.app.state
    if not hasattr(state, "runs"):
        state.runs = Runs()
    runs: Runs = state.runs
    return runs


async def _start(
    driver: Driver, runs: Runs, tenant: str, body: ChatRequest | CompletionRequest
) -> _Running:
    body.check()
    said = body.weftline or Provenance()
    if body.session_id is not None:
        said = replace(said, session_id=body.session_id)
    runs.close(driver, tenant, said.close)
    own = said.session_id is None
    session = driver.open(tenant) if own else runs.enter(driver, tenant, said)
    try:
        submit = Submit(session_id=session.id, calls=(body.call(session),))
        nodes = await driver.submit(session, submit)
    except BaseException:
        if own:
            driver.close(session)
        else:
            runs.leave(driver, session)
        raise
    return _Running(driver, runs, session, nodes[0], own)


async def _complete(
    request: Request,
    driver: Driver,
    tenant: str,
    body: ChatRequest | CompletionRequest,
    shape: Shape,
) -> Response:
    running = await _start(driver, _runs(request), tenant, body)
    ours = None if body.weftline is None else running.ids
    answer = Answer.new(shape, driver.dispatcher.model(body.model), ours)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventSourceResponse(
            _chunks(running, answer, usage), send_timeout=SEND_TIMEOUT_S, sep="\n"
        )
    try:
        reading = driver.get(running.session, running.variable)
        variable = await or_disconnect(request, reading)
        running.runs.answered(running.session)
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
        running.runs.answered(running.session)
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
