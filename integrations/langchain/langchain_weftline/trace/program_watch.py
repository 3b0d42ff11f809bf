"""What `weftline compare` does to a LangChain program.

The program's models are put on the server, its outermost chains are accelerated or left as they
are, and its callbacks are counted.

This runs in a process of its own, which ends with the comparison. No other process is changed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import langchain_openai
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import LLMResult
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableBranch,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableEach
from langchain_core.tracers.context import register_configure_hook
from langchain_openai import ChatOpenAI

from langchain_weftline import ChatWeftline
from langchain_weftline.ahead.accelerated_chain import AcceleratedChain, accelerate
from weftline.kit.program_run import ChainNote, Current, Side
from weftline.kit.server import NO_KEY, default_api_key, default_base_url, without_v1

_CHAINS: tuple[type, ...] = (
    RunnableSequence,
    RunnableParallel,
    RunnableBinding,
    RunnableEach,
    RunnableBranch,
    RunnableWithFallbacks,
    AcceleratedChain,
    BaseChatModel,
)
_WHOLE = ("invoke", "batch")
_AWAITED = ("ainvoke", "abatch")
_PARTS = ("stream",)
_AWAITED_PARTS = ("astream", "astream_events")

# Whether an outermost chain of the program runs: what it calls is a part of it.
_inside: ContextVar[bool] = ContextVar("_inside", default=False)


def prepare(side: Side, current: Current) -> None:
    """Change LangChain's classes in this process, for all programs that it will run."""
    _place_models(side)
    chains = list(_CHAINS)
    if importlib.util.find_spec("langgraph"):
        from langgraph.pregel import Pregel

        chains.append(Pregel)
    for kind in chains:
        for names, wrapped in (
            (_WHOLE, _whole),
            (_AWAITED, _awaited),
            (_PARTS, _parts),
            (_AWAITED_PARTS, _awaited_parts),
        ):
            for name in names:
                setattr(kind, name, wrapped(getattr(kind, name), side, current))
    # A default is seen in all threads, those of the program too.
    watching = _Callbacks(current)
    handler: ContextVar[Any] = ContextVar("_callbacks", default=watching)
    register_configure_hook(handler, inheritable=True)


def _place_models(side: Side) -> None:
    """Let the program's models send to the server, whatever the program says."""
    server = without_v1(default_base_url())
    key = default_api_key() or NO_KEY
    os.environ |= {"OPENAI_BASE_URL": f"{server}/v1", "OPENAI_API_KEY": key}
    aliases = {"base_url", "openai_api_base", "api_key", "openai_api_key", "model", "model_name"}

    def placed(made: Callable[..., None], **more: Any) -> Callable[..., None]:
        @wraps(made)
        def __init__(self: Any, **values: Any) -> None:
            own = {name: value for name, value in values.items() if name not in aliases}
            made(self, **own, base_url=f"{server}/v1", api_key=key, model=side.model, **more)

        return __init__

    if side.accelerated:
        ChatWeftline.__init__ = placed(ChatWeftline.__init__)  # type: ignore[method-assign]
        for module in (langchain_openai, langchain_openai.chat_models):
            vars(module)["ChatOpenAI"] = ChatWeftline
        return
    plain = placed(ChatWeftline.__init__, provenance=False)
    ChatOpenAI.__init__ = placed(ChatOpenAI.__init__)  # type: ignore[method-assign]
    ChatWeftline.__init__ = plain  # type: ignore[method-assign]


def _way(chain: Runnable[Any, Any], side: Side) -> Runnable[Any, Any]:
    """The chain as it runs on this side."""
    if isinstance(chain, BaseChatModel):
        return chain
    if isinstance(chain, AcceleratedChain):
        return chain if side.accelerated else chain.bound
    return accelerate(chain) if side.accelerated else chain


@contextmanager
def _outermost(
    chain: Runnable[Any, Any], args: tuple[Any, ...], side: Side, current: Current
) -> Iterator[Runnable[Any, Any]]:
    """The chain as it runs on this side, timed, once what is known of it before is noted."""
    way = _way(chain, side)
    if isinstance(way, AcceleratedChain) and args:
        found, name = way.explain(args[0]), way.bound.get_name()
        current.watch.note(ChainNote(name, found.before.count, [*found.what_follows()]))
    _inside.set(True)
    try:
        with current.watch.chain():
            yield way
    finally:
        _inside.set(False)


def _whole(method: Callable[..., Any], side: Side, current: Current) -> Callable[..., Any]:
    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return method(self, *args, **kwargs)
        with _outermost(self, args, side, current) as way:
            return getattr(way, method.__name__)(*args, **kwargs)

    return run


def _awaited(method: Callable[..., Any], side: Side, current: Current) -> Callable[..., Any]:
    @wraps(method)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return await method(self, *args, **kwargs)
        with _outermost(self, args, side, current) as way:
            return await getattr(way, method.__name__)(*args, **kwargs)

    return run


def _parts(method: Callable[..., Any], side: Side, current: Current) -> Callable[..., Any]:
    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if _inside.get():
            yield from method(self, *args, **kwargs)
            return
        with _outermost(self, args, side, current) as way:
            yield from getattr(way, method.__name__)(*args, **kwargs)

    return run


def _awaited_parts(method: Callable[..., Any], side: Side, current: Current) -> Callable[..., Any]:
    @wraps(method)
    async def run(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if _inside.get():
            async for part in method(self, *args, **kwargs):
                yield part
            return
        with _outermost(self, args, side, current) as way:
            async for part in getattr(way, method.__name__)(*args, **kwargs):
                yield part

    return run


class _Callbacks(BaseCallbackHandler):
    """Counts what LangChain tells its handlers, and keeps the answers of models."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event(f"chain start {kwargs.get('name')}")

    def on_chain_end(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event("chain end")

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        self._current.watch.event(f"chain error {type(error).__name__}")

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event("model start")

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self._current.watch.event("model end")
        for [made, *_] in response.generations:
            self._current.watch.answer(made.text)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self._current.watch.event(f"model error {type(error).__name__}")

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event(f"tool start {kwargs.get('name')}")

    def on_tool_end(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event("tool end")

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self._current.watch.event(f"tool error {type(error).__name__}")

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event("retriever start")

    def on_retriever_end(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event("retriever end")

    def on_retry(self, *args: Any, **kwargs: Any) -> None:
        self._current.watch.event("retry")
