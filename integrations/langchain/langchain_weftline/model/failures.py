"""Turns a failure in the server into the exception that the plain chain would have raised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, cast

import openai
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import SecretStr

from langchain_weftline.model.transport import Answering, httpx
from weftline.errors import (
    ClientFailed,
    ConnectionFailed,
    Refusal,
    Timeout,
    WeftlineError,
)

CHAT = "chat"  # the server's name for the call of a chat, which no model of this adapter changes


def as_model(failure: WeftlineError, *, streamed: bool = False) -> BaseException:
    """The exception that a ChatWeftline raises when the server answers with `failure`.

    With `streamed` the answer is a stream. To find the exception, a real model is called with a
    client that sends nothing, because LangChain has its own classes for most errors. Its cause is
    `failure`, or the exception behind a ClientFailed. Of that one, some versions of the openai
    client raise the exception itself.
    """
    # If the call fails during a stream, the status of the response was already sent as a success.
    streamed = streamed and _is_late(failure)

    def refuse(request: Any) -> httpx.Response:
        broken = _transport_error(failure, request)
        if streamed:
            return httpx.Response(200, content=_break_off(failure, broken), request=request)
        if broken is not None:
            raise broken
        refusal = _refusal(failure)
        if isinstance(refusal.body, str):
            return httpx.Response(refusal.status, text=refusal.body, request=request)
        return httpx.Response(refusal.status, json=refusal.body, request=request)

    model = BaseChatOpenAI(
        model="default",
        base_url="http://weftline/v1",
        api_key=SecretStr("none"),
        http_client=Answering(refuse),
        max_retries=0,
    )
    asked: list[BaseMessage] = [HumanMessage("")]
    behind = failure.__cause__ if isinstance(failure, ClientFailed) else failure
    assert behind is not None, "a ClientFailed has a cause"
    trace, cause, context = behind.__traceback__, behind.__cause__, behind.__context__
    if isinstance(failure, ClientFailed) and not behind.__suppress_context__:
        cause = context  # the caller raises it again, and Python then sets another context
    foreign = (type(behind),) if isinstance(failure, ClientFailed) else ()
    try:
        if streamed:
            list(model._stream(asked))
        else:
            model._generate(asked)
    except (openai.OpenAIError, httpx.TransportError, *foreign) as raised:
        error: BaseException = raised
        error.__cause__, error.__context__ = behind, None  # they would show the model called here
        behind.__cause__, behind.__context__ = cause, context
        behind.__traceback__ = trace
        if error is behind:
            return error
        if isinstance(failure, ConnectionFailed):
            error.add_note(failure.message)  # LangChain's message has no address
        return error
    raise AssertionError("an error's status is no success")


def _refusal(failure: WeftlineError) -> Refusal:
    """The response that a chat would have had in the place of `failure`.

    Before version 3 the openai client's message has the whole body in it, so the body is the one
    that came. Only the name of a call that failed is another: that of every chat.
    """
    refusal = failure.refusal or Refusal(failure.status, failure.to_body())
    body = refusal.body
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or error.get("type") != failure.type or failure.call is None:
        return refusal
    assert isinstance(body, dict), "it has the error"
    return Refusal(refusal.status, {**body, "error": {**error, "call": CHAT}})


def _is_late(failure: WeftlineError) -> bool:
    """Whether `failure` comes after the answer has begun."""
    if isinstance(failure, ConnectionFailed | ClientFailed):
        return failure.began
    if isinstance(failure, Timeout):
        return True
    return failure.call is not None and failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _transport_error(failure: WeftlineError, request: Any) -> BaseException | None:
    """The HTTP client's exception behind `failure`, or None where the server has answered."""
    if isinstance(failure, ClientFailed):
        return failure.__cause__
    if isinstance(failure, Timeout):
        return httpx.ReadTimeout(failure.message, request=request)
    if not isinstance(failure, ConnectionFailed):
        return None
    cause = failure.__cause__
    kind = getattr(httpx, type(cause).__name__, httpx.ConnectError)
    return cast(Exception, kind(str(cause or failure.message), request=request))


def _break_off(failure: WeftlineError, broken: BaseException | None) -> Iterator[bytes]:
    """A stream that ends with `failure`."""
    if broken is not None:
        raise broken
    yield b"data: " + json.dumps(_refusal(failure).body).encode() + b"\n\n"
