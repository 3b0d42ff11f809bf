"""A compiled graph of LangGraph whose runs have our callback handlers.

The handlers stand in no configuration. A graph's configuration is part of the states that the user
reads, and its copy loses what the user's copy of a graph must keep. In LangGraph before 1.2 the
callbacks of a run also replace those of the graph.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, Self, TypeVar, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.base import BaseCallbackManager
from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

G = TypeVar("G")
Handlers = Sequence[BaseCallbackHandler]

MOST = 2  # handlers of one graph: LangChain takes one from each of these variables
_begun: list[ContextVar[BaseCallbackHandler | None]] = [
    ContextVar(f"weftline_graph_{number}", default=None) for number in range(MOST)
]


@cache
def _hook() -> None:
    """Make LangChain take the handlers of a run from `_begun` from now on."""
    for variable in _begun:
        register_configure_hook(variable, inheritable=True)


def with_handlers(graph: G, handlers: Handlers) -> G:
    """A copy of `graph` whose runs have `handlers`, too. It is otherwise the same graph."""
    assert len(handlers) <= MOST, "each handler needs a variable"
    _hook()
    kind: Any = _class_of(cast(Any, type(graph)))
    made = kind.__new__(kind)
    made.__dict__.update(vars(graph), _handlers=tuple(handlers))
    return cast(G, made)


@cache
def _class_of(kind: type) -> type:
    """The class of graphs like those of `kind`, whose runs have handlers."""
    if issubclass(kind, _WithHandlers):
        return kind
    named = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {  # their signatures are the graph's
        name: wraps(getattr(kind, name))(getattr(_WithHandlers, name))
        for name in ("stream", "astream")
    }
    return type(kind.__name__, (_WithHandlers, kind), {**named, **methods})


class _WithHandlers:
    """The part of such a graph that adds the handlers. LangGraph runs a graph by these methods."""

    _handlers: Handlers

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """LangGraph's own makes a new graph, which lacks what is set after a graph is made."""
        made = copy.copy(self)
        made.__dict__.update(update or {})
        return made

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Iterator[Any]:
        config, by_hook = _within(config, self._handlers)
        parts: Generator[Any] = super().stream(input, config, **options)  # type: ignore[misc]
        with closing(parts):
            with _set(by_hook):  # the run begins with its first part
                first = list(_next(parts))
            yield from first
            yield from parts

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        config, by_hook = _within(config, self._handlers)
        parts: AsyncGenerator[Any] = super().astream(input, config, **options)  # type: ignore[misc]
        async with aclosing(parts):
            with _set(by_hook):
                first = [part async for part in _anext(parts)]
            for part in first:
                yield part
            async for part in parts:
                yield part


def _next(parts: Iterator[Any]) -> Iterator[Any]:
    for part in parts:
        yield part
        return


async def _anext(parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for part in parts:
        yield part
        return


def _within(
    config: RunnableConfig | None, handlers: Handlers
) -> tuple[RunnableConfig | None, Handlers]:
    """The configuration of a run, and the handlers that LangChain takes from `_begun`.

    Callbacks of the call, or of a run around it, get the handlers. A call without callbacks stays
    one, because before LangGraph 1.2 its callbacks would replace those of the graph.
    """
    callbacks = (config or {}).get("callbacks")
    if not callbacks:
        callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
        if not isinstance(callbacks, BaseCallbackManager):
            return config, handlers
    made: Any = [*callbacks, *handlers] if isinstance(callbacks, list) else callbacks.copy()
    if not isinstance(made, list):
        for one in handlers:
            made.add_handler(one, inherit=True)
    return {**(config or {}), "callbacks": made}, ()


@contextmanager
def _set(handlers: Handlers) -> Iterator[None]:
    tokens = [one.set(handler) for one, handler in zip(_begun, handlers, strict=False)]
    try:
        yield
    finally:
        for variable, token in zip(_begun, tokens, strict=False):
            variable.reset(token)
