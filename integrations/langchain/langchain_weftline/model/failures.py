"""Turns a failure in the server into the exception that the plain chain would have raised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

import openai
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import SecretStr

from langchain_weftline.lower.graph import Tree, specs_of
from langchain_weftline.lower.searches import is_of_search
from langchain_weftline.lower.symbols import Spec
from langchain_weftline.model.transport import Answering, httpx
from weftline.contract import transforms
from weftline.contract.protocol import Call
from weftline.contract.transforms.yaml_text import Yaml
from weftline.errors import (
    ClientFailed,
    ConnectionFailed,
    Refusal,
    Timeout,
    TransformFailed,
    WeftlineError,
)

CHAT = "chat"  # the server's name for the call of a chat, which no model of this adapter changes
_INVALID_JSON = "Invalid json output: "
# An OutputParserException's message begins like one of these. Other parsers raise ValueError.
_PARSERS_OWN = (
    _INVALID_JSON,
    "Could not parse datetime string",
    "Response '",
    "Failed to parse XML format",
    "Got invalid JSON object",
    "Got invalid return object",
    "Expected JSON object (dict)",
    "Parsing text\n",
)
_ROUTED = " raised following error:\n"  # a router's parser puts this before the inner message
_BUILTIN_ERRORS: dict[str, type[Exception]] = {
    "AttributeError": AttributeError,
    "IndexError": IndexError,
    "KeyError": KeyError,
    "TypeError": TypeError,
    "ValueError": ValueError,
}


@contextmanager
def own_failures(
    tree: Tree, calls: Iterable[Call] = (), *, streamed: bool = False
) -> Iterator[None]:
    """Turn the server's failures inside this block into the plain chain's exceptions.

    `tree` is the value that was read, and `calls` are the calls that may have failed before it.
    """
    try:
        yield
    except TransformFailed as failure:
        raise as_step(failure, [*specs_of(tree), *_specs(calls)]) from failure
    except WeftlineError as failure:
        if is_of_search(failure):
            raise
        made = as_model(failure, streamed=streamed)
        raise made from made.__cause__


def as_step(failure: TransformFailed, specs: Iterable[Spec]) -> BaseException:
    """The exception that the parser or the step itself would have raised."""
    message = failure.message
    name, _, rest = message.partition(": ")
    if (error := _BUILTIN_ERRORS.get(name)) is None:
        if failure.param == Yaml.op and message.startswith("Failed to parse "):
            return OutputParserException(message, llm_output=_unread(message, specs))
        if message.startswith(_PARSERS_OWN):
            text = message.removeprefix(_INVALID_JSON)
            head, routed, inner = message.rpartition(_ROUTED)
            if routed and inner.startswith(_PARSERS_OWN):
                message = head + routed + str(OutputParserException(inner))
            return OutputParserException(message, llm_output=None if text == message else text)
        return ValueError(message) if failure.param in transforms.OPS else as_model(failure)
    if error is KeyError:  # the message has the key's repr, and the specs have the key itself
        keys = {repr(key): key for spec in specs for key in spec.get("keys", ())}
        return KeyError(keys.get(rest, rest))
    return error(rest)


def _unread(message: str, specs: Iterable[Spec]) -> str | None:
    """The text that a YAML transform could not read, taken from its message."""
    for transform in (transforms.parse(spec) for spec in specs if spec["op"] == Yaml.op):
        before = f"Failed to parse {getattr(transform, 'class_name', None)} from completion "
        for end in re.finditer(r"\. Got: ", message.removeprefix(before)):
            text = message.removeprefix(before)[: end.start()]
            try:
                transform.apply(text)
            except TransformFailed as failure:
                if failure.message == message:
                    return text
    return None


def _specs(calls: Iterable[Call]) -> Iterator[Spec]:
    for call in calls:
        for placeholder in call.placeholders:
            yield from placeholder.transforms


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
