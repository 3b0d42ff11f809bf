"""How a call of LangChain finds what was begun ahead of it: through the callbacks of its run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks.base import BaseCallbackManager
from langchain_core.runnables.config import var_child_runnable_config

from langchain_weftline.trace.handlers import OwnHandler
from langchain_weftline.trace.prompt_origins import running
from weftline.errors import WeftlineError
from weftline.kit import Server, awaited
from weftline.kit.retrieval_requests import Embedder


@dataclass(frozen=True, slots=True)
class SearchKey:
    """A search that a vector store asks the server for. Equal keys have equal hits.

    `filter` is JSON with sorted keys.
    """

    server: Server
    store: str
    embedder: Embedder
    query: str
    k: int
    filter: str


@dataclass(frozen=True, slots=True)
class RerankKey:
    """A reranking that a compressor asks the server for. Equal keys have equal results.

    Each document is its id and its text.
    """

    server: Server
    engine: str | None
    query: str
    documents: tuple[tuple[str | None, str], ...]
    k: int | None


# What was sent ahead for the retriever that is running. A vector store does not get the callbacks
# of its retriever.
_RETRIEVING: ContextVar[Sequence[Any]] = ContextVar("retrieving", default=())


class Begun(OwnHandler, ABC):
    """A callback handler through which calls find what was sent ahead. It ignores all events."""

    @abstractmethod
    def of(self, parent: UUID | None) -> Iterable[Any]:
        """Each `Ahead` in which a call inside the run `parent` may find its result."""


def begun(run_manager: Any) -> Iterator[Any]:
    """What was sent ahead for the runs around a call, the outermost run first."""
    parent = running() if run_manager is None else run_manager.parent_run_id
    for handler in _handlers(run_manager):
        if isinstance(handler, Begun):
            yield from handler.of(parent)


@contextmanager
def retrieving(run_manager: Any) -> Iterator[None]:
    """Let the searches in this block find what was sent ahead for the runs around a retriever."""
    token = _RETRIEVING.set(list(begun(run_manager)))
    try:
        yield
    finally:
        _RETRIEVING.reset(token)


def hits_of(key: SearchKey, timeout_s: float | None) -> Any:
    """The hits of a search that was sent ahead for a retriever around this code.

    None if there is none, or if it has no hits: the store then asks itself.
    """
    return _value_of(_RETRIEVING.get(), key, timeout_s)


async def ahits_of(key: SearchKey, timeout_s: float | None) -> Any:
    """Like `hits_of`, for a coroutine."""
    return await _avalue_of(_RETRIEVING.get(), key, timeout_s)


def ranked_of(key: RerankKey, callbacks: Any, timeout_s: float | None) -> Any:
    """What a reranking has kept that was sent ahead; None if there is none.

    `callbacks` are those that a compressor gets from its retriever.
    """
    return _value_of(_around(callbacks), key, timeout_s)


async def aranked_of(key: RerankKey, callbacks: Any, timeout_s: float | None) -> Any:
    """Like `ranked_of`, for a coroutine."""
    return await _avalue_of(_around(callbacks), key, timeout_s)


def _around(callbacks: Any) -> Sequence[Any]:
    return list(begun(callbacks)) if isinstance(callbacks, BaseCallbackManager) else ()


def _value_of(runs: Sequence[Any], key: Any, timeout_s: float | None) -> Any:
    for run in reversed(runs):
        if (result := run.take(key)) is not None:
            try:
                return result.value.result(timeout_s).value
            except (WeftlineError, TimeoutError, CancelledError) as error:
                run.note(error)
    return None


async def _avalue_of(runs: Sequence[Any], key: Any, timeout_s: float | None) -> Any:
    for run in reversed(runs):
        if (result := run.take(key)) is not None:
            try:
                return (await awaited(result.value, timeout_s)).value
            except (WeftlineError, TimeoutError) as error:
                run.note(error)
    return None


def _handlers(run_manager: Any) -> Sequence[Any]:
    """The handlers of a run. LangChain does not pass them to a model that is streamed."""
    if run_manager is not None:
        handlers: Sequence[Any] = run_manager.handlers
        return handlers
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks") or ()
    return callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ())
