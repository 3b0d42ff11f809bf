"""CompiledChain: a LangChain chain whose model calls run as one graph in the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing, closing
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManagerForChainRun,
)
from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_weftline.lowered import Lowered, Variable, message_facts
from langchain_weftline.lowering import Run, lower
from langchain_weftline.runner import arun, astream_text, run, stream_text
from weftline.http import OnGraph

Input = Any
Output = Any


def compile_chain(chain: Runnable[Any, Any], *, on_graph: OnGraph | None = None) -> CompiledChain:
    """`chain` with the same inputs and outputs, its model calls sent to the server as one graph.

    Args:
        chain: An LCEL chain whose models are `ChatWeftline` of one server.
        on_graph: Called after each run with the session's graph, as GET /v1/session/{id}/graph
            gives it: calls, edges, and where every second went.

    Steps that only move or show values (sequences, parallels, `.map()`, assign, pick, f-string
    prompts, string, JSON and list parsers, itemgetter, pure lambdas) never wait for a model; steps
    on values that the client has run in the client, as ever. A step that needs, in the client, a
    value which only the server will have raises `CannotCompile` when the chain is invoked.
    """
    return CompiledChain(chain, on_graph)


class CompiledChain(Runnable[Input, Output]):
    """What `compile_chain` returns.

    Callbacks see the compiled chain start and end, and the steps that run in the client, but not
    the steps that run in the server. The global LLM cache is not asked, and a call whose answer
    nobody reads is not made. Failures raise what the parser or the model raises in the plain chain;
    the server's own `weftline.errors.WeftlineError` is the cause.
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
        """The result as it is generated, where it is one text or message; else all at once."""
        return self._transform_stream_with_config(iter([input]), self._stream, config)

    def astream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """The result as it is generated, where it is one text or message; else all at once."""

        async def inputs() -> AsyncIterator[Input]:
            yield input

        # Returned, not iterated: closing it closes the session at once.
        return self._atransform_stream_with_config(inputs(), self._astream, config)

    def _invoke(
        self, input: Input, run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> Output:
        return run(_drive(lower(self.chain, input, config)), self._on_graph)

    async def _ainvoke(
        self, input: Input, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Output:
        return await arun(await _adrive(lower(self.chain, input, config)), self._on_graph)

    def _stream(
        self,
        inputs: Iterator[Input],
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
    ) -> Iterator[Output]:
        for input in inputs:
            lowered = _drive(lower(self.chain, input, config))
            final = lowered.streamable()
            if final is None:
                yield run(lowered, self._on_graph)
                continue
            show = _Shown(final, self._on_graph)
            with closing(stream_text(lowered, final.var, show.on_graph)) as texts:
                for text in texts:
                    yield show.part(text)
            if final.is_message:
                yield show.end()

    async def _astream(
        self,
        inputs: AsyncIterator[Input],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
    ) -> AsyncIterator[Output]:
        async for input in inputs:
            lowered = await _adrive(lower(self.chain, input, config))
            final = lowered.streamable()
            if final is None:
                yield await arun(lowered, self._on_graph)
                continue
            show = _Shown(final, self._on_graph)
            async with aclosing(astream_text(lowered, final.var, show.on_graph)) as texts:
                async for text in texts:
                    yield show.part(text)
            if final.is_message:
                yield show.end()


class _Shown:
    """A streamed result: texts as they are, a message as chunks with its usage in the last."""

    def __init__(self, final: Variable, on_graph: OnGraph | None) -> None:
        self._final = final
        self._given = on_graph
        self._graph: dict[str, Any] = {}
        self.on_graph = self._keep if final.is_message else on_graph

    def _keep(self, graph: dict[str, Any]) -> None:
        self._graph = graph
        if self._given is not None:
            self._given(graph)

    def part(self, text: str) -> Any:
        return AIMessageChunk(content=text) if self._final.is_message else text

    def end(self) -> AIMessageChunk:
        facts = message_facts(self._graph).get(self._final.var, {})
        return AIMessageChunk(content="", chunk_position="last", **facts)


def _drive(steps: Generator[Run, Any, Lowered]) -> Lowered:
    """Run what a lowering asks for, until it is done."""
    result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as done:
            return _lowered(done)
        result = step.step.invoke(step.value, step.config, **step.options)


async def _adrive(steps: Generator[Run, Any, Lowered]) -> Lowered:
    result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as done:
            return _lowered(done)
        result = await step.step.ainvoke(step.value, step.config, **step.options)


def _lowered(done: StopIteration) -> Lowered:
    assert isinstance(done.value, Lowered), "a lowering returns what it lowered"
    return done.value
