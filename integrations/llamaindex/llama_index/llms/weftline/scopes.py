"""Adds scopes to the methods of LlamaIndex that make many requests and have no span.

Without a scope, each of their calls would be a run of its own. A scope is a context variable, so
that tasks and threads inherit it. LlamaIndex's own spans and events stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Protocol
from uuid import uuid4

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.evaluation import BatchEvalRunner
from llama_index.core.indices.base import BaseIndex


class Spans(Protocol):
    """Is called at the beginning and the end of a method."""

    def enter(self, id: str, instance: Any, arguments: Any, parent: Any) -> Any: ...

    def leave(self, id: str, result: Any) -> None: ...


ENCLOSING: ContextVar[str | None] = ContextVar("weftline_enclosing", default=None)
"""The id of the scope around the running code."""

_METHODS = (
    (BaseIndex, "from_documents"),
    (BaseIndex, "build_index_from_nodes"),
    (BaseIndex, "insert_nodes"),
    (VectorStoreIndex, "build_index_from_nodes"),
    (VectorStoreIndex, "insert_nodes"),
    (VectorStoreIndex, "ainsert_nodes"),
    (BaseEmbedding, "acall"),
    (BatchEvalRunner, "aevaluate_queries"),
    (BatchEvalRunner, "aevaluate_response_strs"),
    (BatchEvalRunner, "aevaluate_responses"),
)
_MARK = "_weftline_scope"


def enclose(spans: Spans, active: Callable[[], str | None]) -> None:
    """Give the methods their scopes, once. `active` is the id of LlamaIndex's innermost span."""
    for owner, name in _METHODS:
        found = inspect.getattr_static(owner, name, None)
        if found is None:
            continue  # an older LlamaIndex does not have it
        is_class_method = isinstance(found, classmethod)
        function = found.__func__ if is_class_method else found
        if not hasattr(function, _MARK):
            scoped = _scoped(function, spans, active)
            setattr(scoped, _MARK, True)
            setattr(owner, name, classmethod(scoped) if is_class_method else scoped)


def _scoped(
    function: Callable[..., Any], spans: Spans, active: Callable[[], str | None]
) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @contextmanager
    def scope(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        try:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:  # calling the method gives the better error message
            arguments = {}
        instance = arguments.pop(next(iter(signature.parameters)), None)
        id = f"{type(instance).__name__}.{function.__name__}-{uuid4()}"
        spans.enter(id, instance, arguments, active() or ENCLOSING.get())
        token = ENCLOSING.set(id)
        try:
            yield
        finally:
            ENCLOSING.reset(token)
            spans.leave(id, None)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            with scope(args, kwargs):
                return await function(*args, **kwargs)

        return arun

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with scope(args, kwargs):
            return function(*args, **kwargs)

    return run
