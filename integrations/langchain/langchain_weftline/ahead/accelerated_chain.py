"""AcceleratedChain: LangChain runs the chain as usual, but the server has begun its model calls."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, get_config_list, merge_configs
from langchain_core.runnables.schema import StreamEvent
from langchain_core.tracers._streaming import (
    _StreamingCallbackHandler,
    _V2StreamingCallbackHandler,
)
from pydantic import Field

from langchain_weftline.ahead.accelerated_graph import with_handlers
from langchain_weftline.ahead.documents import Compressed
from langchain_weftline.ahead.explanation import Explanation, Seconds, explain
from langchain_weftline.ahead.nodes import Combined, Nodes
from langchain_weftline.ahead.prefetch import Ahead
from langchain_weftline.lower.classic import combining
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.symbols import UNKNOWN, has_unknown
from langchain_weftline.trace.prompt_origins import application_of, running
from langchain_weftline.trace.threads import Threads
from weftline.sdk.http import OnGraph

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

Input = TypeVar("Input")
Output = TypeVar("Output")
Config = RunnableConfig
Graph = TypeVar("Graph", bound="Pregel[Any, Any, Any, Any]")


@overload
def accelerate(  # type: ignore[overload-overlap] # a graph is a Runnable, too
    chain: Graph, *, on_graph: None = None
) -> Graph: ...


@overload
def accelerate(
    chain: Runnable[Input, Output], *, on_graph: OnGraph | None = None
) -> AcceleratedChain[Input, Output]: ...


def accelerate(chain: Runnable[Any, Any], *, on_graph: OnGraph | None = None) -> Runnable[Any, Any]:
    """`chain`, whose model calls begin in the server before LangChain makes them.

    Args:
        chain: An LCEL chain with models that are `ChatWeftline`, or a compiled graph of LangGraph.
        on_graph: Called for each run with its session's graph, as GET /v1/session/{id}/graph
            gives it. It is called from another thread, in the context of the run, when the server
            has sent the graph. It is not called for a run that ends before its calls, because the
            server cancels them.

    When the chain is invoked, the calls that depend only on its input, and on the answers of such
    calls, go to the server as one graph. LangChain then runs the chain unchanged: callbacks, side
    effects, exceptions and streamed events are the plain chain's. A model call whose prompt and
    parameters equal those of a call in the graph gets that call's result, and a search of a
    WeftlineVectorStore likewise. Any other is an ordinary call. Unused calls are cancelled. None of
    your code runs to find the graph.

    A graph of LangGraph stays a graph, with its checkpoints, interrupts and streams. All runs of a
    thread share one session, so the server knows which answers of earlier turns a prompt contains.
    When a node that is a chain starts, all of the chain's calls begin. If a node is a function that
    calls a chain of several calls, accelerate that chain by itself.
    """
    if not _is_graph(chain):
        return AcceleratedChain(bound=chain, on_graph=on_graph)
    if on_graph is not None:
        raise ValueError(
            "on_graph is called for chains: a LangGraph graph makes its calls one by one. "
            "Accelerate the chain inside the node, or look at the session in the server"
        )
    nodes = Nodes(cast(Any, chain))
    of_nodes = [nodes] if nodes.chains else []
    return with_handlers(chain, [Threads(), *of_nodes])


def _is_graph(chain: object) -> bool:
    """Whether this is a compiled graph of LangGraph. LangGraph is not imported to find out."""
    pregel = sys.modules.get("langgraph.pregel")
    return pregel is not None and isinstance(chain, pregel.Pregel)


compile_chain = accelerate
"""The name under which `accelerate` was first known."""


class AcceleratedChain(RunnableBindingBase[Input, Output]):
    """The chain that `accelerate` returns: the same chain, whose model calls begin earlier."""

    on_graph: OnGraph | None = Field(default=None, exclude=True)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False

    def explain(
        self,
        input: Any = UNKNOWN,
        *,
        ask_server: bool = False,
        measure: bool = False,
        **kwargs: Any,
    ) -> Explanation:
        """Which calls would be sent ahead for `input`, and why others not. Print the result.

        Without an input it says what is true of any input. Nothing is sent. With `ask_server` one
        request asks the server where it has seen prompts of these calls part, so that their KV
        cache was not shared. With `measure` the chain runs four times plain and four times
        accelerated, with all of its effects, and the explanation has the seconds. Raises ValueError
        if there is no input to measure.
        """
        found = explain(self.bound, input, kwargs, ask_server=ask_server)
        if not measure:
            return found
        if input is UNKNOWN:
            raise ValueError("measure=True runs the chain: give the input, too")
        ways = partial(self.bound.invoke, input, **kwargs), partial(self.invoke, input, **kwargs)
        return replace(found, measured=Seconds.of(*ways))

    def invoke(self, input: Input, config: Config | None = None, **kwargs: Any) -> Output:
        with self._begun(input, config, kwargs) as begun:
            return self.bound.invoke(input, begun, **kwargs)

    async def ainvoke(self, input: Input, config: Config | None = None, **kwargs: Any) -> Output:
        with self._begun(input, config, kwargs) as begun:
            return await self.bound.ainvoke(input, begun, **kwargs)

    def stream(self, input: Input, config: Config | None = None, **kwargs: Any) -> Iterator[Output]:
        with self._begun(input, config, kwargs, parts=True) as begun:
            yield from self.bound.stream(input, begun, **kwargs)

    async def astream(
        self, input: Input, config: Config | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        with self._begun(input, config, kwargs, parts=True) as begun:
            made = cast(AsyncGenerator[Output], self.bound.astream(input, begun, **kwargs))
            async with aclosing(made) as parts:
                async for part in parts:
                    yield part

    def batch(
        self,
        inputs: list[Input],
        config: Config | list[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Output]:
        with self._all_begun(inputs, config, kwargs) as begun:
            return self.bound.batch(inputs, begun, return_exceptions=return_exceptions, **kwargs)

    async def abatch(
        self,
        inputs: list[Input],
        config: Config | list[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Output]:
        with self._all_begun(inputs, config, kwargs) as begun:
            return await self.bound.abatch(
                inputs, begun, return_exceptions=return_exceptions, **kwargs
            )

    @overload
    def batch_as_completed(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: Literal[False] = ...,
        **kwargs: Any,
    ) -> Iterator[tuple[int, Output]]: ...

    @overload
    def batch_as_completed(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: Literal[True],
        **kwargs: Any,
    ) -> Iterator[tuple[int, Output | Exception]]: ...

    def batch_as_completed(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None = None,
        **kwargs: Any,
    ) -> Iterator[tuple[int, Output | Exception]]:
        with self._all_begun(inputs, config, kwargs) as begun:
            yield from self.bound.batch_as_completed(inputs, begun, **kwargs)

    @overload
    def abatch_as_completed(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: Literal[False] = ...,
        **kwargs: Any,
    ) -> AsyncIterator[tuple[int, Output]]: ...

    @overload
    def abatch_as_completed(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: Literal[True],
        **kwargs: Any,
    ) -> AsyncIterator[tuple[int, Output | Exception]]: ...

    async def abatch_as_completed(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[tuple[int, Output | Exception]]:
        with self._all_begun(inputs, config, kwargs) as begun:
            async for done in self.bound.abatch_as_completed(inputs, begun, **kwargs):
                yield done

    def astream_events(  # type: ignore[override] # one signature for both versions
        self, input: Input, config: Config | None = None, **kwargs: Any
    ) -> AsyncIterator[StreamEvent] | Awaitable[Any]:
        if kwargs.get("version") == "v3":  # not sent ahead, because its stream outlives this call
            later: Awaitable[Any] = super().astream_events(input, config, **kwargs)
            return later
        return self._events(input, config, **kwargs)

    async def _events(
        self, input: Input, config: Config | None, **kwargs: Any
    ) -> AsyncIterator[StreamEvent]:
        with self._begun(input, config, {}, parts=True) as begun:
            made = self.bound.astream_events(input, begun, **kwargs)
            async with aclosing(cast(AsyncGenerator[StreamEvent], made)) as events:
                async for event in events:
                    yield event

    def transform(
        self, input: Iterator[Input], config: Config | None = None, **kwargs: Any
    ) -> Iterator[Output]:
        """Waits for the whole input, because the calls depend on all of it."""
        if parts := list(input):
            yield from self.stream(_added(parts), config, **kwargs)

    async def atransform(
        self, input: AsyncIterator[Input], config: Config | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """Waits for the whole input, because the calls depend on all of it."""
        if parts := [part async for part in input]:
            async for part in self.astream(_added(parts), config, **kwargs):
                yield part

    @contextmanager
    def _begun(
        self, input: Input, config: Config | None, options: dict[str, Any], *, parts: bool = False
    ) -> Iterator[Config]:
        """The configuration of a run whose calls have been submitted."""
        config = ensure_config(config)  # adds the configuration of the surrounding run
        lowering = Lowering(streams=parts)
        result = lowering.plan(self.bound, input, config, options)
        drafts, steps = lowering.calls.drafts, lowering.searches.drafts
        # A call that is alone begins at once in the plain chain, too, and costs the client less.
        # Where the result is not known, a step of the client may run before the call.
        is_alone = len(drafts) + len(steps) == 1 and not has_unknown(result)
        is_alone = is_alone and self.on_graph is None
        handlers: list[BaseCallbackHandler] = []
        if (combine := combining(self.bound)) is not None:
            handlers.append(Combined(combine))
        if lowering.compressing:
            handlers.append(Compressed(lowering.compressing))
        if is_alone or not (drafts or steps):
            yield merge_configs(config, {"callbacks": handlers}) if handlers else config
            return
        server = lowering.calls.server or lowering.searches.server
        assert server is not None, "a call has a model, and a search a store"
        name = application_of(running(), config.get("run_name") or self.bound.get_name())
        parts = parts or _streams_inside(lowering.calls.models, config)
        ahead = Ahead(server, drafts, steps, parts=parts, on_graph=self.on_graph, name=name)
        try:
            yield merge_configs(config, {"callbacks": [ahead, *handlers]})
        finally:
            ahead.close()

    @contextmanager
    def _all_begun(
        self,
        inputs: Sequence[Input],
        config: Config | Sequence[Config] | None,
        options: dict[str, Any],
    ) -> Iterator[list[Config]]:
        with ExitStack() as stack:
            configs = get_config_list(config, len(inputs))
            yield [
                stack.enter_context(self._begun(input, one, options))
                for input, one in zip(inputs, configs, strict=True)
            ]


def _streams_inside(models: Sequence[Any], config: Config) -> bool:
    """Whether LangChain streams a model's answer in a run that is not streamed itself.

    LangChain does so for a model with `streaming=True`, and for handlers that show tokens, such as
    those of `astream_events` and of LangGraph's stream mode `messages` around this run.
    """
    callbacks = config.get("callbacks") or ()
    handlers = callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ())
    shown = (_StreamingCallbackHandler, _V2StreamingCallbackHandler)
    if any(isinstance(handler, shown) for handler in handlers):
        return True
    return any(model.streaming and model.disable_streaming is not True for model in models)


def _added(parts: list[Any]) -> Any:
    """The parts of a streamed input, added up. Of parts that cannot be added the last one counts,
    as in LangChain's own steps."""
    whole, *more = parts
    for part in more:
        try:
            whole = whole + part
        except TypeError:
            whole = part
    return whole
