"""A failure in the server as the exception that LangChain code expects where it happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.transport import httpx
from weftline.errors import ConnectionFailed, TransformFailed, WeftlineError
from weftline.protocol import Call

_INVALID_JSON = "Invalid json output: "
_BUILTIN_ERRORS: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "KeyError": KeyError,
    "TypeError": TypeError,
    "ValueError": ValueError,
}


@contextmanager
def own_failures(calls: Iterable[Call]) -> Iterator[None]:
    """Raise what a parser, a step or a model that failed in the server would have raised here."""
    try:
        yield
    except TransformFailed as failure:
        raise as_step(failure, calls) from failure
    except WeftlineError as failure:
        raise as_model(failure) from failure


def as_step(failure: TransformFailed, calls: Iterable[Call]) -> Exception:
    """What the parser or the step itself would have raised."""
    message = failure.message
    if message.startswith(_INVALID_JSON):
        return OutputParserException(message, llm_output=message.removeprefix(_INVALID_JSON))
    name, _, rest = message.partition(": ")
    error = _BUILTIN_ERRORS.get(name)
    if error is None:
        return as_model(failure)
    if error is KeyError:  # its text is the key's repr; the key itself stands in the calls
        keys = {repr(key): key for key in _keys(calls)}
        return KeyError(keys.get(rest, rest))
    return error(rest)


def _keys(calls: Iterable[Call]) -> Iterator[str | int]:
    for call in calls:
        for placeholder in call.placeholders:
            for spec in placeholder.transforms:
                yield from spec.get("keys", ())


def as_model(failure: WeftlineError) -> Exception:
    """What a ChatWeftline raises when the server answers with `failure`.

    It is asked: LangChain has classes of its own for most errors, and new ones with each version.
    """

    def refuse(request: Any) -> httpx.Response:
        if isinstance(failure, ConnectionFailed):
            raise httpx.ConnectError(failure.message, request=request)
        return httpx.Response(failure.status, json=failure.to_body(), request=request)

    http = httpx.Client(transport=httpx.MockTransport(refuse))
    model = ChatWeftline(http_client=http, max_retries=0, provenance=False)
    try:
        model._generate([HumanMessage("")])
    except openai.OpenAIError as error:
        error.__cause__ = error.__context__ = None  # of our asking
        return error
    raise AssertionError("an error's status is no success")
