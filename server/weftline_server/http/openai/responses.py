"""POST /v1/responses: OpenAI's newer form of a chat, whole, as events or in the background."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline_server.http.direct import Direct
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.openai import background_runs
from weftline_server.http.openai.completions import choices_of
from weftline_server.http.openai.kept_items import kept_items
from weftline_server.http.openai.replies import CHAT
from weftline_server.http.openai.requests import ChatRequest
from weftline_server.http.openai.response_output import Made, told
from weftline_server.http.openai.response_record import (
    Past,
    ResponseRecord,
    past_of,
    with_references,
)
from weftline_server.http.openai.response_requests import ResponsesRequest
from weftline_server.http.openai.submission import Running, start
from weftline_server.http.openai.surface import OpenAIRoute, check
from weftline_server.http.openai.tool_types import Offer
from weftline_server.http.state import asking, state_of
from weftline_server.prompt.answer import deltas_of
from weftline_server.runtime.service import Service

router = APIRouter(prefix="/v1", tags=["openai"], route_class=Direct)

LEFT_OUT = "Weftline-Left-Out"  # the header with the types of tools that were left out
log = logging.getLogger(__name__)


@router.post(
    "/responses",
    openapi_extra=schema(ResponsesRequest),
    response_model=None,
)
async def respond(request: Request) -> Response:
    """One response: text, or calls of the tools that the request offers."""
    service, tenant = asking(request)
    state = state_of(request.app)
    plain: list[Mapping[str, Any]] = []  # the body as it came: items have fields that we pass over

    def checked(sent: Mapping[str, Any]) -> None:
        check(OpenAIRoute.RESPONSES, sent)
        plain.append(sent)

    body = await read(request, ResponsesRequest, checked)
    past = await past_of(state.kept, tenant, body)
    most = state.config.max_body
    given = await with_references(state.kept, tenant, plain[0]["input"], past, most)
    if not isinstance(given, str) and given is not plain[0]["input"]:
        body = body.with_input(given)
    offer = Offer(refuses=state.config.refuse_hosted_tools)
    chat = _of_one_model(service, body.chat(offer, past.items), past)
    if chat.weftline is not None and chat.weftline.run_tools:
        raise InvalidRequest("run_tools goes with chat completions", param="weftline")
    if body.background:
        state.background.admit(tenant)
    running = await start(
        request, service, tenant, chat, CHAT, goes_on=past.is_some, detach=body.background
    )
    made = Made.new(running.reply.model, body, offer)
    taken = {item["id"] for item in past.items}
    record = ResponseRecord(state.kept, tenant, kept_items(given, taken, made.id))
    headers = left_out_header(offer)
    if body.background:
        begun = await background_runs.begin(state, running, made, record)
        if body.stream:
            return EventStream(begun.follow(0), headers)
        return JSONResponse(begun.body, headers=headers)
    if body.stream:
        return EventStream(_events(running, made, record), headers)
    try:
        [choice] = choices_of(running)
        whole = await or_disconnect(request, choice.whole())
        running.runs.responded(running.session)
        reason = whole["finish_reason"]
        for event in (*made.read(deltas_of(whole["message"])), *made.end(reason)):
            assert event, "the response is built of its events"
        ended = made.ended(reason, await running.usage(running.tasks))
        await record.ended(ended)
        return JSONResponse(ended, headers=headers)
    except WeftlineError as error:
        chat.name_field(error)
        raise
    finally:
        running.end()


def _of_one_model(service: Service, chat: ChatRequest, past: Past) -> ChatRequest:
    """The request with the own name of its model, by which the session of the turn before is
    found. Raises InvalidRequest if that turn was one of another model."""
    name = service.engines.model(chat.model or past.model).name
    if past.model not in (None, name):
        raise InvalidRequest(
            f"the response that is continued is of model {past.model!r}, and not of {name!r}: "
            "leave out model, or send the whole input",
            param="previous_response_id",
        )
    return replace(chat, model=name)


def left_out_header(offer: Offer) -> dict[str, str]:
    """The header that names what the model was not told of. The log names it, too."""
    names = dict.fromkeys(offer.left_out)
    if not (said := ", ".join(one for one in names if one.replace("-", "_").isidentifier())):
        return {}
    log.info("a request leaves out what another service runs: %s", said)
    return {LEFT_OUT: said}


async def _events(
    running: Running, made: Made, record: ResponseRecord
) -> AsyncGenerator[bytes, None]:
    """The typed events of a response. The call ends with the stream, whichever side ends it."""
    try:
        for kind in ("created", "in_progress"):
            event = made.told(kind, made.body())
            yield sse(event["type"], event)
        running.runs.responded(running.session)
        async for event in told(running, made, record.ended):
            yield sse(event["type"], event)
    except WeftlineError as error:
        event = made.told("failed", made.failed(error))
        yield sse(event["type"], event)
    finally:
        running.end()
