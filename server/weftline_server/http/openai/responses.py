"""POST /v1/responses: OpenAI's newer form of a chat, whole or as typed events."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.arguments import ArgumentReader, MemberText
from weftline.contract.errors import (
    ContextTooLong,
    InvalidRequest,
    Overloaded,
    WeftlineError,
)
from weftline_engine.api import FinishReason
from weftline_server.http.direct import Direct
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.openai.completions import choices_of
from weftline_server.http.openai.replies import CHAT
from weftline_server.http.openai.response_requests import ResponsesRequest
from weftline_server.http.openai.submission import Running, start
from weftline_server.http.openai.surface import OpenAIRoute, check
from weftline_server.http.openai.tool_types import INPUT, Offer, OtherTool
from weftline_server.http.state import asking, state_of
from weftline_server.prompt.answer import deltas_of
from weftline_server.prompt.tool_parser import Arguments, Called, Said, Thought, Unfinished

router = APIRouter(prefix="/v1", tags=["openai"], route_class=Direct)

Event = dict[str, Any]

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
    body = await read(request, ResponsesRequest, partial(check, OpenAIRoute.RESPONSES))
    offer = Offer(refuses=state_of(request.app).config.refuse_hosted_tools)
    chat = body.chat(offer)
    if chat.weftline is not None and chat.weftline.run_tools:
        raise InvalidRequest("run_tools goes with chat completions", param="weftline")
    running = await start(request, service, tenant, chat, CHAT)
    made = Made.new(running.reply.model, body, offer)
    headers = left_out_header(offer)
    if body.stream:
        return EventStream(_events(running, made), headers)
    try:
        [choice] = choices_of(running)
        whole = await or_disconnect(request, choice.whole())
        running.runs.responded(running.session)
        for event in (*made.read(deltas_of(whole["message"])), *made.end()):
            assert event, "the response is built of its events"
        ended = made.ended(whole["finish_reason"], await running.usage(running.tasks))
        return JSONResponse(ended, headers=headers)
    except WeftlineError as error:
        chat.name_field(error)
        raise
    finally:
        running.end()


def left_out_header(offer: Offer) -> dict[str, str]:
    """The header that names what the model was not told of. The log names it, too."""
    names = dict.fromkeys(offer.left_out)
    if not (said := ", ".join(one for one in names if one.replace("-", "_").isidentifier())):
        return {}
    log.info("a request leaves out what another service runs: %s", said)
    return {LEFT_OUT: said}


async def _events(running: Running, made: Made) -> AsyncGenerator[bytes, None]:
    """The typed events of a response. The call ends with the stream, whichever side ends it."""
    number = 0

    def numbered(event: Event) -> bytes:
        nonlocal number
        number += 1
        return sse(event["type"], {**event, "sequence_number": number - 1})

    [choice] = choices_of(running)
    try:
        for kind in ("response.created", "response.in_progress"):
            yield numbered({"type": kind, "response": made.body()})
        running.runs.responded(running.session)
        async for deltas in choice.deltas():
            for event in made.read(deltas):
                yield numbered(event)
        for event in made.end():
            yield numbered(event)
        step = choice.step
        assert step is not None and step.reason is not None, "the stream has ended"
        whole = made.ended(step.reason.value, await running.usage(running.tasks))
        yield numbered({"type": f"response.{whole['status']}", "response": whole})
    except WeftlineError as error:
        failed = {**made.body("failed"), "error": _error(error)}
        yield numbered({"type": "response.failed", "response": failed})
    finally:
        running.end()


def _error(error: WeftlineError) -> dict[str, Any]:
    """The error with one of the few codes of OpenAI's API, and with our own type beside it."""
    code = "server_error"
    if isinstance(error, ContextTooLong):
        code = "context_length_exceeded"  # no code of this API, but clients look for it
    elif isinstance(error, InvalidRequest):
        code = "invalid_prompt"
    elif isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    return {**error.to_body()["error"], "code": code}


def _plain(value: Any, fields: Callable[[Sequence[tuple[str, Any]]], Any] = dict) -> Any:
    """A part of the request as JSON that the response shows again. `fields` makes its objects."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return asdict(value, dict_factory=fields)


def _given(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The fields that a client has set."""
    return {name: value for name, value in fields if value is not None}


class _Form(Enum):
    """What an item of the output is: its type, and the beginning of its id and of its events."""

    MESSAGE = ("message", "msg", "response.output_text")
    THOUGHTS = ("reasoning", "rs", "response.reasoning_text")
    CALL = ("function_call", "fc", "response.function_call_arguments")
    CUSTOM = ("custom_tool_call", "ctc", "response.custom_tool_call_input")

    @property
    def written(self) -> str | None:
        """The field of a call that the model writes; None for what is no call."""
        return {_Form.CALL: "arguments", _Form.CUSTOM: INPUT}.get(self)


@dataclass(slots=True)
class _Item:
    """One item of the output while it grows. A call in which the answer ended is not complete.

    The model writes the call of a custom tool as one of a function. Its text is the input in that.
    """

    form: _Form
    body: dict[str, Any]
    index: int
    text: str = ""
    is_cut: bool = False
    arguments: ArgumentReader = field(default_factory=ArgumentReader)

    @property
    def place(self) -> dict[str, Any]:
        """Where an event of this item belongs."""
        where = {"item_id": self.body["id"], "output_index": self.index}
        return where if self.form.written else {**where, "content_index": 0}

    def part(self) -> dict[str, Any]:
        if self.form is _Form.THOUGHTS:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def beside(self) -> dict[str, Any]:
        """What an event of text has besides."""
        return {"logprobs": []} if self.form is _Form.MESSAGE else {}

    def event(self, what: str, **body: Any) -> Event:
        return {"type": f"{self.form.value[2]}.{what}", **self.place, **body}

    def whole(self, status: str) -> dict[str, Any]:
        if self.form.written:
            status = "incomplete" if self.is_cut else status
            return {**self.body, self.form.written: self.text, "status": status}
        content = [self.part()] if self.text or status == "completed" else []
        return {**self.body, "content": content, "status": status}


@dataclass(slots=True)
class Made:
    """The response as it grows. The same events build a whole one and a streamed one."""

    head: dict[str, Any]
    offer: Offer
    items: list[_Item] = field(default_factory=list)
    open: _Item | None = None

    @staticmethod
    def new(model: str, body: ResponsesRequest, offer: Offer) -> Made:
        """A response of which nothing was generated."""
        head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": _plain(body.tool_choice or "auto", _given),
            "tools": [_plain(one) for one in body.tools or () if not isinstance(one, OtherTool)],
            "metadata": {},
        }
        return Made(head, offer)

    def body(self, status: str = "in_progress") -> dict[str, Any]:
        """The response as it stands."""
        return {
            **self.head,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [item.whole("completed") for item in self.items],
            "usage": None,
        }

    def ended(self, reason: str, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The response at its end. A response that was cut off says so."""
        made = usage.get("completion_tokens_details", {})
        cut = reason == FinishReason.LENGTH.value
        details = {"reason": "max_output_tokens"} if cut else None
        return {
            **self.body("incomplete" if cut else "completed"),
            "incomplete_details": details,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {
                    **usage["prompt_tokens_details"],
                    "cache_write_tokens": usage["prompt_tokens"]
                    - usage["prompt_tokens_details"]["cached_tokens"],
                },
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": made.get("reasoning_tokens", 0)},
                "total_tokens": usage["total_tokens"],
                **{name: usage[name] for name in ("cost", "saved") if name in usage},
            },
        }

    def read(self, deltas: Any) -> Iterator[Event]:
        """Take new deltas, and yield the events that tell of them."""
        for delta in deltas:
            match delta:
                case Said(text):
                    yield from self._text(_Form.MESSAGE, text, role="assistant")
                case Thought(text):
                    yield from self._text(_Form.THOUGHTS, text, summary=[])
                case Called(_, id, name):
                    form = _Form.CUSTOM if name in self.offer.customs else _Form.CALL
                    group, name = self.offer.groups.get(name, (None, name))
                    space = {} if group is None else {"namespace": group}
                    yield from self._begin(form, call_id=id, name=name, **space)
                case Arguments(_, text):
                    yield from self._argue(text)
                case Unfinished() if self.open is not None:
                    self.open.is_cut = True
                case _:
                    pass  # parts that only early tools read

    def _text(self, form: _Form, text: str, **body: Any) -> Iterator[Event]:
        if self.open is None or self.open.form is not form:
            yield from self._begin(form, **body, content=[])
        if text:
            yield self._grow(text)

    def _argue(self, text: str) -> Iterator[Event]:
        """More of the arguments of a call."""
        assert self.open is not None, "arguments have a call"
        if self.open.form is _Form.CALL:
            yield self._grow(text)
            return
        for part in self.open.arguments.feed(text):
            if isinstance(part, MemberText) and part.key == INPUT and part.text:
                yield self._grow(part.text)

    def _grow(self, text: str) -> Event:
        item = self.open
        assert item is not None, "a delta has an item"
        item.text += text
        return item.event("delta", delta=text, **item.beside())

    def _begin(self, form: _Form, **body: Any) -> Iterator[Event]:
        yield from self._close()
        name, prefix, _ = form.value
        body = {"type": name, "id": f"{prefix}_{uuid.uuid4().hex}", **body}
        self.open = item = _Item(form, body, len(self.items))
        self.items.append(item)
        started = {"output_index": item.index, "item": item.whole("in_progress")}
        yield {"type": "response.output_item.added", **started}
        if not form.written:
            yield {"type": "response.content_part.added", **item.place, "part": item.part()}

    def end(self) -> Iterator[Event]:
        """End the output. One without a text and without calls has an empty message."""
        if all(item.form is _Form.THOUGHTS for item in self.items):
            yield from self._text(_Form.MESSAGE, "", role="assistant")
        yield from self._close()

    def _close(self) -> Iterator[Event]:
        """End the item that is open, if any."""
        item, self.open = self.open, None
        if item is None:
            return
        if item.form.written and item.is_cut:
            pass  # its arguments are not done
        elif item.form is _Form.CALL:
            yield item.event("done", arguments=item.text, name=item.body["name"])
        elif item.form is _Form.CUSTOM:
            yield item.event("done", input=item.text)
        else:
            yield item.event("done", text=item.text, **item.beside())
            yield {"type": "response.content_part.done", **item.place, "part": item.part()}
        done = {"output_index": item.index, "item": item.whole("completed")}
        yield {"type": "response.output_item.done", **done}
