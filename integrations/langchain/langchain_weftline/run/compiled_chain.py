"""CompiledChain: a LangChain chain whose model calls run as one graph in the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, get_callback_manager_for_config
from langchain_core.runnables.graph import Graph
from langchain_core.runnables.schema import StreamEvent
from langchain_core.runnables.utils import ConfigurableFieldSpec
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.utils.pydantic import TypeBaseModel

from langchain_weftline.lower.classic import is_classic
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.plan import plan
from langchain_weftline.lower.steps import Mode
from langchain_weftline.lower.symbols import UNKNOWN, AnswerMessage, Ref
from langchain_weftline.run.accelerated_chain import AcceleratedChain
from langchain_weftline.run.explanation import Explanation, explain
from langchain_weftline.run.runner import Execution
from langchain_weftline.trace.audience import hears_models
from langchain_weftline.trace.provenance import application_of
from weftline.sdk.http import OnGraph

if TYPE_CHECKING:
    from langchain_weftline.chat_models import ChatWeftline

Input = Any
Output = Any


def compile_chain(chain: Runnable[Any, Any], *, on_graph: OnGraph | None = None) -> CompiledChain:
    """A chain with the same inputs and outputs, whose model calls run as graphs in the server.

    Args:
        chain: An LCEL chain with models that are `ChatWeftline`.
        on_graph: Called after each run with the session's graph, as GET /v1/session/{id}/graph
            gives it: calls, edges, and the time of each phase.

    Steps that only move or show values (sequences, parallels, `.map()`, assign, pick, f-string
    prompts, parsers, itemgetter, pure lambdas) never wait for a model. Any other step (retrievers,
    tools, opaque functions) runs in the client, on the values that it needs, as a step of the same
    graph. `explain()` tells where each step runs, and why.
    """
    return CompiledChain(chain, on_graph)


class CompiledChain(Runnable[Input, Output]):
    """The chain that `compile_chain` returns.

    Callbacks see the compiled chain start and end, its model calls, and the steps that run in the
    client. They do not see the other steps that run in the server. If a callback wants each token,
    as those of `astream_events` do, LangChain runs the chain, and its calls are sent ahead. A call
    whose answer nobody reads is not made. A failure raises the exception of the plain chain's
    parser or model, whose cause is the server's `weftline.errors.WeftlineError`.
    """

    def __init__(self, chain: Runnable[Any, Any], on_graph: OnGraph | None = None) -> None:
        self.chain = chain
        self._on_graph = on_graph

    @property
    def InputType(self) -> type[Any]:
        return self.chain.InputType

    @property
    def OutputType(self) -> type[Any]:
        return self.chain.OutputType

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return super().get_name(suffix, name=name or f"Compiled{self.chain.get_name()}")

    def get_input_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        return self.chain.get_input_schema(config)

    def get_output_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        return self.chain.get_output_schema(config)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        return self.chain.config_specs

    def get_graph(self, config: RunnableConfig | None = None) -> Graph:
        return self.chain.get_graph(config)

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:
        if self._is_langchains(config):
            return self._accelerated.invoke(input, config, **kwargs)
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Output:
        if self._is_langchains(config):
            return await self._accelerated.ainvoke(input, config, **kwargs)
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def stream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Output]:
        """The result as it is generated, in the parts that the plain chain streams.

        A result that is one text or message is streamed from the graph. Any other result, and every
        stream with callbacks for model calls, is streamed by LangChain, with its calls sent ahead.
        """
        if _streams_text(self.chain, input, config, kwargs):
            return self._transform_stream_with_config(iter([input]), self._stream, config, **kwargs)
        return self._accelerated.stream(input, config, **kwargs)

    def astream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """The result as it is generated, in the parts that the plain chain streams."""
        if not _streams_text(self.chain, input, config, kwargs):
            return self._accelerated.astream(input, config, **kwargs)

        async def inputs() -> AsyncIterator[Input]:
            yield input

        # The generator is returned, not iterated, so that closing it closes the session at once.
        return self._atransform_stream_with_config(inputs(), self._astream, config, **kwargs)

    def astream_events(  # type: ignore[override] # one signature for both versions
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[StreamEvent] | Awaitable[Any]:
        """The events of the plain chain. LangChain runs it, and its calls are sent ahead."""
        return self._accelerated.astream_events(input, config, **kwargs)

    @property
    def _accelerated(self) -> AcceleratedChain[Any, Any]:
        return AcceleratedChain(bound=self.chain, on_graph=self._on_graph)

    @cached_property
    def _models(self) -> list[ChatWeftline]:
        lowering = Lowering(mode=Mode.EXPLAIN)
        plan(lowering, self.chain, UNKNOWN)
        return lowering.calls.models

    def explain(self, input: Input = UNKNOWN, *, ask_server: bool = False) -> Explanation:
        """Which steps run in the server, which in the client, and why. Print the result.

        The explanation also says which variables of the prompts stand before constant text, which
        is computed anew whenever they change. None of your code runs, and nothing is sent. With
        `ask_server` one request asks the server where it has seen prompts of these calls part.

        Without an `input` the explanation is true for any input. With one, it also counts the items
        of lists and names the calls. With `ask_server` it may raise the errors of any request.
        """
        mode = Mode.AHEAD if is_classic(self.chain) else Mode.EXPLAIN
        return explain(self.chain, input, mode=mode, ask_server=ask_server)

    def _invoke(
        self,
        input: Input,
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        **options: Any,
    ) -> Output:
        name = application_of(run_manager.run_id)
        with Execution(self.chain, input, config, self._on_graph, options, name=name) as execution:
            return execution.run()

    async def _ainvoke(
        self,
        input: Input,
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **options: Any,
    ) -> Output:
        name = application_of(run_manager.run_id)
        with Execution(self.chain, input, config, self._on_graph, options, name=name) as execution:
            return await execution.arun()

    def _stream(
        self,
        inputs: Iterator[Input],
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        **options: Any,
    ) -> Iterator[Output]:
        for input in inputs:
            name = application_of(run_manager.run_id)
            with Execution(
                self.chain, input, config, self._on_graph, options, streams=True, name=name
            ) as execution:
                yield from execution.stream()

    async def _astream(
        self,
        inputs: AsyncIterator[Input],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **options: Any,
    ) -> AsyncIterator[Output]:
        async for input in inputs:
            name = application_of(run_manager.run_id)
            with Execution(
                self.chain, input, config, self._on_graph, options, streams=True, name=name
            ) as execution:
                async with aclosing(execution.astream()) as parts:
                    async for part in parts:
                        yield part

    def _is_langchains(self, config: RunnableConfig | None) -> bool:
        """Whether LangChain runs the chain, with its calls sent ahead.

        LangChain does so for classic chains, and if callbacks want each token, as LangGraph's
        stream of messages does.
        """
        if is_classic(self.chain):
            return True
        handlers = get_callback_manager_for_config(ensure_config(config)).handlers
        if any(isinstance(handler, _StreamingCallbackHandler) for handler in handlers):
            return True
        streaming = [model for model in self._models if model.streaming]
        return any(model.callbacks or hears_models(handlers) for model in streaming)


def _streams_text(
    chain: Runnable[Any, Any],
    input: Input,
    config: RunnableConfig | None,
    options: dict[str, Any],
) -> bool:
    """Whether the result is one text or message, and no callback wants the model calls."""
    config = ensure_config(config)
    if is_classic(chain) or hears_models(get_callback_manager_for_config(config).handlers):
        return False
    lowering = Lowering(mode=Mode.EXPLAIN, decides=False)
    made = plan(lowering, chain, input, config, options)
    if any(model.callbacks for model in lowering.calls.models):
        return False
    if lowering.calls.asks_for_class:
        return False  # the openai client reads the object while the answer is streamed
    if isinstance(made, AnswerMessage):
        return not made.calls_tools and made.form is None
    return isinstance(made, Ref) and made.is_text and not made.transforms
