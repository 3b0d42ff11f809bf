"""POST /v1/messages, whole or streamed, and POST /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline_server.http.anthropic.error_forms import error_body
from weftline_server.http.anthropic.message_replies import AnswerEnding, MessageReply
from weftline_server.http.anthropic.message_requests import (
    CountRequest,
    MessagesRequest,
    check_body,
)
from weftline_server.http.direct import Direct
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.openai.completions import ReplyChoice, choices_of
from weftline_server.http.openai.models import prompt_tokens
from weftline_server.http.openai.replies import CHAT
from weftline_server.http.openai.responses import left_out_header
from weftline_server.http.openai.running_usage import usage_so_far
from weftline_server.http.openai.submission import Running, start
from weftline_server.http.openai.tool_types import Offer
from weftline_server.http.state import asking, state_of
from weftline_server.prompt.answer import deltas_of

router = APIRouter(prefix="/v1", tags=["anthropic"], route_class=Direct)


@router.post("/messages", openapi_extra=schema(MessagesRequest), response_model=None)
async def create_message(request: Request) -> Response:
    """One message: thoughts, text, or calls of the tools that the request offers."""
    service, tenant = asking(request)
    body = await read(request, MessagesRequest, check_body)
    offer = _offer(request)
    chat = body.answered(offer)
    if body.weftline is not None and body.weftline.run_tools:
        raise InvalidRequest("run_tools goes with chat completions", param="weftline")
    running = await start(request, service, tenant, chat, CHAT, goes_on=body.is_kept)
    if line := body.accounting:
        state_of(request.app).accounting.note(tenant, running.reply.model, line)
    reply, headers = MessageReply(running.reply.model), left_out_header(offer)
    if body.stream:
        return EventStream(_events(running, reply), headers)
    try:
        [choice] = choices_of(running)
        whole = await or_disconnect(request, choice.whole())
        running.runs.responded(running.session)
        for event in reply.read(deltas_of(whole["message"])):
            assert event, "the message is built of its events"
        usage = await running.usage(running.tasks)
        return JSONResponse(reply.whole(_ended(choice), usage), headers=headers)
    except WeftlineError as error:
        chat.name_field(error)
        raise
    finally:
        running.end()


@router.post("/messages/count_tokens", openapi_extra=schema(CountRequest), response_model=None)
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a message has."""
    service, _ = asking(request)
    body = await read(request, CountRequest, check_body)
    chat = body.chat(_offer(request))
    tokens = await prompt_tokens(service, body.model, chat)
    return JSONResponse({"input_tokens": len(tokens)})


def _offer(request: Request) -> Offer:
    """An offer without tools. Anthropic runs every tool whose type is not the client's."""
    return Offer(refuses=state_of(request.app).config.refuse_hosted_tools, hosted=("",))


def _ended(choice: ReplyChoice) -> AnswerEnding:
    step = choice.step
    assert step is not None and step.reason is not None, "the answer has ended"
    return AnswerEnding(step.reason, "" if step.usage is None else step.usage.stopped_by)


async def _events(running: Running, reply: MessageReply) -> AsyncGenerator[bytes, None]:
    """The events of a message. The call ends with the stream, whichever side ends it."""
    [choice] = choices_of(running)
    has_begun = False

    def begin() -> bytes:
        prompt = usage_so_far(running.session, running.tasks)["prompt_tokens"]
        return _sent(reply.start(prompt))

    try:
        async for deltas in choice.deltas():
            if not has_begun:
                has_begun = True
                yield begin()
                running.runs.responded(running.session)
            for event in reply.read(deltas):
                yield _sent(event)
        if not has_begun:
            yield begin()
        usage = await running.usage(running.tasks)
        for event in reply.end(_ended(choice), usage):
            yield _sent(event)
    except WeftlineError as error:
        running.body.name_field(error)
        yield sse("error", error_body(error))
    finally:
        running.end()


def _sent(event: dict[str, Any]) -> bytes:
    return sse(event["type"], event)
