"""The answers of embedding models and stores: results that were sent ahead, or requests."""

from __future__ import annotations

import logging
from typing import Any

from llama_index.llms.weftline.trace.span_handler import SPANS

from weftline.errors import Timeout, WeftlineError
from weftline.kit import BACKGROUND, Result, Retrieval, awaited
from weftline.kit.faults import traceback_of
from weftline.kit.retrieval_requests import AnswerSteps

Items = list[dict[str, Any]]
Vectors = list[list[float]]

log = logging.getLogger(__name__)


def ask(server: Retrieval, asked: AnswerSteps) -> Any:
    """The answer, from a graph that the running code has sent ahead, or from a request."""
    return BACKGROUND.run(_answer(server, asked, SPANS.found(server.server, asked)))


async def aask(server: Retrieval, asked: AnswerSteps) -> Any:
    """Like `ask`, for a coroutine."""
    return await _answer(server, asked, SPANS.found(server.server, asked))


async def _answer(server: Retrieval, asked: AnswerSteps, found: Result | None) -> Any:
    if found is not None:
        try:
            return await _value(found, server.server.timeout_s)
        except Timeout:
            raise
        except WeftlineError as error:
            _note("a retrieval", error)
    return await server.aask(asked)


def stored(server: Retrieval, store: str, items: Items, vectors: Vectors) -> list[str] | None:
    """The ids of items that the running code has sent ahead to be stored; None if it has not."""
    found = SPANS.stored(server.server, store, items, vectors)
    return None if found is None else BACKGROUND.run(_ids(found, server.server.timeout_s))


async def astored(
    server: Retrieval, store: str, items: Items, vectors: Vectors
) -> list[str] | None:
    """Like `stored`, for a coroutine."""
    found = SPANS.stored(server.server, store, items, vectors)
    return None if found is None else await _ids(found, server.server.timeout_s)


def _note(what: str, error: WeftlineError) -> None:
    """Log why a request is made now. It meets the same error, or has an answer."""
    trace = traceback_of(error)
    level = logging.DEBUG if trace is None else logging.WARNING
    log.log(level, "%s sent ahead has failed: %s", what, error, exc_info=trace)


async def _ids(results: list[Result], timeout_s: float | None) -> list[str] | None:
    try:
        values = [await _value(result, timeout_s) for result in results]
    except Timeout:
        raise
    except WeftlineError as error:
        _note("an ingestion", error)
        return None
    return [id for value in values for id in value["ids"]]


async def _value(result: Result, timeout_s: float | None) -> Any:
    try:
        return (await awaited(result.value, timeout_s)).value
    except TimeoutError:
        text = f"no answer came within {timeout_s:g} s: set a longer timeout"
        raise Timeout(text) from None
