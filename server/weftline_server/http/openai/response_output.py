"""The response of /v1/responses as it grows: its items, and the events that tell of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from typing import Any

from weftline.contract.arguments import ArgumentReader, MemberText
from weftline.contract.errors import (
    ContextTooLong,
    InvalidRequest,
    Overloaded,
    WeftlineError,
)
from weftline_engine.api import FinishReason
from weftline_server.http.openai.completions import choices_of
from weftline_server.http.openai.kept_items import item_id
from weftline_server.http.openai.response_requests import ResponsesRequest
from weftline_server.http.openai.submission import Running
from weftline_server.http.openai.tool_types import INPUT, Offer, OtherTool
from weftline_server.prompt.tool_parser import Arguments, Called, Said, Thought, Unfinished

Event = dict[str, Any]

# What a response has besides its head, which stays as it is.
_GROWS = ("status", "error", "incomplete_details", "output", "usage")


async def told(
    running: Running, made: Made, ended: Callable[[Event], Awaitable[None]]
) -> AsyncGenerator[Event, None]:
    """The events of a response from its first item to its end. The last one is given once the
    response has been kept by `ended`. Raises the error of its call."""
    [choice] = choices_of(running)
    async for deltas in choice.deltas():
        for event in made.read(deltas):
            yield made.numbered(event)
    step = choice.step
    assert step is not None and step.reason is not None, "the stream has ended"
    for event in made.end(step.reason.value):
        yield made.numbered(event)
    whole = made.ended(step.reason.value, await running.usage(running.tasks))
    await ended(whole)
    yield made.told(whole["status"], whole)


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
    """One item of the output while it grows. One in which the answer was cut off is not complete.

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
        status = "incomplete" if self.is_cut else status
        if self.form.written:
            return {**self.body, self.form.written: self.text, "status": status}
        content = [self.part()] if self.text or status == "completed" else []
        return {**self.body, "content": content, "status": status}


@dataclass(slots=True)
class Made:
    """The response as it grows. The same events build a whole one and a streamed one.

    The id of an item is made from the response's: it is the same one when the answer is generated
    again after a restart.
    """

    head: dict[str, Any]
    offer: Offer
    items: list[_Item] = field(default_factory=list)
    open: _Item | None = None
    number: int = 0  # of the next event

    @staticmethod
    def new(model: str, body: ResponsesRequest, offer: Offer) -> Made:
        """A response of which nothing was generated."""
        head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "background": body.background,
            "conversation": None if body.thread is None else {"id": body.thread},
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "previous_response_id": body.previous_response_id or None,
            "store": body.store,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": _plain(body.tool_choice or "auto", _given),
            "tools": [_plain(one) for one in body.tools or () if not isinstance(one, OtherTool)],
            "metadata": body.metadata or {},
        }
        return Made(head, offer)

    @staticmethod
    def again(response: Mapping[str, Any], offer: Offer) -> Made:
        """The response that began so in an earlier run of the server."""
        return Made({name: one for name, one in response.items() if name not in _GROWS}, offer)

    @property
    def id(self) -> str:
        """The id of the response."""
        return str(self.head["id"])

    def numbered(self, event: Event) -> Event:
        """The event with its number."""
        self.number += 1
        return {**event, "sequence_number": self.number - 1}

    def told(self, what: str, response: dict[str, Any]) -> Event:
        """The event that the response is so now."""
        return self.numbered({"type": f"response.{what}", "response": response})

    def body(self, status: str = "in_progress") -> dict[str, Any]:
        """The response as it stands. The item that is open is complete only if the response is."""
        of_open = {"queued": "in_progress", "in_progress": "in_progress", "completed": "completed"}
        return {
            **self.head,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [
                item.whole(of_open.get(status, "incomplete") if item is self.open else "completed")
                for item in self.items
            ],
            "usage": None,
        }

    def failed(self, error: WeftlineError, *, is_cancelled: bool = False) -> dict[str, Any]:
        """The response that has ended with this error, or because its client cancelled it."""
        if is_cancelled:
            return self.body("cancelled")
        return {**self.body("failed"), "error": _error(error)}

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
        id = item_id(prefix, self.id, len(self.items))
        body = {"type": name, "id": id, **body}
        self.open = item = _Item(form, body, len(self.items))
        self.items.append(item)
        started = {"output_index": item.index, "item": item.whole("in_progress")}
        yield {"type": "response.output_item.added", **started}
        if not form.written:
            yield {"type": "response.content_part.added", **item.place, "part": item.part()}

    def end(self, reason: str) -> Iterator[Event]:
        """End the output. One without a text and without calls has an empty message."""
        if self.open is not None and reason == FinishReason.LENGTH.value:
            self.open.is_cut = True
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
