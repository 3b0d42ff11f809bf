"""CompiledChain: a LangChain chain whose model calls run as one graph in the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_weftline.lower.symbols import UNKNOWN
from langchain_weftline.run.explanation import Explanation, explain
from langchain_weftline.run.runner import Execution
from weftline.http import OnGraph

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
    tools, opaque functions) runs in the client, on the values that it needs. The calls after it
    are another graph of the same session. `explain()` tells where each step runs, and why.
    """
    return CompiledChain(chain, on_graph)


class CompiledChain(Runnable[Input, Output]):
    """The chain that `compile_chain` returns.

    Callbacks see the compiled chain start and end, and the steps that run in the client, but not
    the steps that run in the server. The global LLM cache is not used, and a call whose answer is
    not read is not made. A failure raises the exception of the plain chain's parser or model. The
    server's own `weftline.errors.WeftlineError` is its cause.
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

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:
        return self._call_with_config(self._invoke, input, config)

    async def ainvoke(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Output:
        return await self._acall_with_config(self._ainvoke, input, config)

    def stream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Output]:
        """The result: as it is generated, if it is one text or message, and otherwise at once."""
        return self._transform_stream_with_config(iter([input]), self._stream, config)

    def astream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """The result: as it is generated, if it is one text or message, and otherwise at once."""

        async def inputs() -> AsyncIterator[Input]:
            yield input

        # Returned, not iterated: closing it closes the session at once.
        return self._atransform_stream_with_config(inputs(), self._astream, config)

    def explain(self, input: Input = UNKNOWN) -> Explanation:
        """Which steps run in the server, which in the client, and why. Print the result.

        Nothing is sent, and none of your code runs. Without an input the explanation holds for any
        input. With one, it counts the items of lists, and the calls have their names.
        """
        return explain(self.chain, input)

    def _invoke(
        self, input: Input, run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> Output:
        with Execution(self.chain, input, config, self._on_graph) as execution:
            return execution.run()

    async def _ainvoke(
        self, input: Input, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Output:
        with Execution(self.chain, input, config, self._on_graph) as execution:
            return await execution.arun()

    def _stream(
        self,
        inputs: Iterator[Input],
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
    ) -> Iterator[Output]:
        for input in inputs:
            with Execution(self.chain, input, config, self._on_graph) as execution:
                yield from execution.stream()

    async def _astream(
        self,
        inputs: AsyncIterator[Input],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
    ) -> AsyncIterator[Output]:
        async for input in inputs:
            with Execution(self.chain, input, config, self._on_graph) as execution:
                async with aclosing(execution.astream()) as parts:
                    async for part in parts:
                        yield part
