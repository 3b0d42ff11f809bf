"""WeftlineSynthesizer: a response synthesizer that submits a whole synthesis to the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers import (
    Accumulate,
    ResponseMode,
    get_response_synthesizer,
)
from llama_index.core.response_synthesizers.base import BaseSynthesizer
from llama_index.core.schema import NodeWithScore
from llama_index.core.settings import Settings
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.ahead.submitted_graph import SubmittedGraph
from llama_index.llms.weftline.plan.call_plan import CallPlan, Unplannable, can_plan, plan_synthesis
from llama_index.llms.weftline.trace.run_provenance import begin_run
from llama_index.llms.weftline.trace.span_handler import SPANS
from llama_index.response_synthesizers.weftline.report import Report

from weftline.errors import WeftlineError

SEPARATOR = "\n---------------------\n"
REPORT = "weftline"
"""The key of the report in a response's metadata."""

_report: ContextVar[Report | None] = ContextVar("weftline_report", default=None)


class WeftlineSynthesizer(BaseSynthesizer):
    """Answers like LlamaIndex's synthesizer of the same mode, with one request.

    `response.metadata["weftline"]` has for each source which calls read it and how many seconds
    they took. For a streamed answer it is filled in when the stream has ended.

    LlamaIndex's own synthesizer runs if the client parses the answers (objects, or an LLM with an
    output parser). It also runs if the calls are not one graph (modes without calls, or answers
    that may need packing again).

    LlamaIndex's events and callbacks are called for all calls when the last one has ended.
    """

    def __init__(
        self,
        llm: LLM | None = None,
        response_mode: ResponseMode | str = ResponseMode.COMPACT,
        **options: Any,
    ) -> None:
        """`options` are those of `get_response_synthesizer`: templates, `streaming` and so on."""
        found = llm or Settings.llm
        if not isinstance(found, Weftline):
            kind = type(found).__name__
            raise ValueError(f"WeftlineSynthesizer runs on a Weftline LLM, and this is a {kind}")
        self._inner: Any = get_response_synthesizer(
            llm=found, response_mode=ResponseMode(response_mode), **options
        )
        super().__init__(
            llm=found,
            callback_manager=options.get("callback_manager"),
            prompt_helper=options.get("prompt_helper"),
            streaming=options.get("streaming", False),
            output_cls=options.get("output_cls"),
            # LlamaIndex 0.14.12 knows neither.
            **{
                name: options[name]
                for name in {"chat_prompt_helper", "multimodal"} & options.keys()
            },
        )

    def _get_prompts(self) -> PromptDictType:
        prompts: PromptDictType = self._inner.get_prompts()
        return prompts

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._inner.update_prompts(prompts)

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        sent = self._send(query_str, text_chunks, response_kwargs)
        if sent is None:
            return self._plainly(query_str, text_chunks, response_kwargs)
        if self._streaming:
            return self._stream(sent, query_str, text_chunks, response_kwargs)
        try:
            answers = [sent.text(planned.value.result()) for planned in sent.graph.results]
            sent.finish.result()
        except WeftlineError as error:
            return self._after(error, query_str, text_chunks, response_kwargs)
        finally:
            sent.leave()
        if _has_blank(answers):
            return self._plainly(query_str, text_chunks, response_kwargs)
        sent.tell()
        return self._join(answers, response_kwargs)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        sent = self._send(query_str, text_chunks, response_kwargs)
        if sent is None:
            return await self._aplainly(query_str, text_chunks, response_kwargs)
        if self._streaming:
            return self._astream(sent, query_str, text_chunks, response_kwargs)
        try:
            waiting = [asyncio.wrap_future(planned.value) for planned in sent.graph.results]
            answers = [sent.text(value) for value in await asyncio.gather(*waiting)]
            await asyncio.wrap_future(sent.finish)
        except WeftlineError as error:
            self._warn(error)
            return await self._aplainly(query_str, text_chunks, response_kwargs)
        finally:
            sent.leave()
        if _has_blank(answers):
            return await self._aplainly(query_str, text_chunks, response_kwargs)
        await sent.atell()
        return self._join(answers, response_kwargs)

    def _send(self, query: str, chunks: Sequence[str], options: Mapping[str, Any]) -> _Sent | None:
        """Submit the synthesis. None if it cannot be one graph."""
        _report.set(None)
        others = {key: value for key, value in options.items() if key != "separator"}
        if not can_plan(self._inner):
            return None
        if self._output_cls is not None or self._llm.output_parser is not None:
            return None  # LlamaIndex's own synthesizer parses them, and its calls are sent ahead
        if self._streaming and isinstance(self._inner, Accumulate):
            return None  # LlamaIndex raises its own error
        try:
            plan = plan_synthesis(self._inner, query, list(chunks), others)
            if not plan.complete:
                return None
            sent = _Sent(self._llm, plan, self._streaming)
        except Unplannable:
            return None
        sent.start()
        _report.set(sent.report)
        return sent

    def _stream(
        self, sent: _Sent, query: str, chunks: Sequence[str], options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        *before, last = sent.graph.results
        has_begun = False
        try:
            for part in last.text.read():
                if not has_begun and _has_blank([sent.text(p.value.result()) for p in before]):
                    break
                has_begun = True
                yield part
            if has_begun:
                sent.finish.result()
                sent.tell()
        except WeftlineError as error:
            if has_begun:
                raise
            self._warn(error)
        finally:
            sent.leave()
        if not has_begun:
            yield from _parts(self._plainly(query, chunks, options))

    async def _astream(
        self, sent: _Sent, query: str, chunks: Sequence[str], options: Mapping[str, Any]
    ) -> AsyncGenerator[str, None]:
        *before, last = sent.graph.results
        has_begun = False
        try:
            async for part in last.text.aread():
                if not has_begun and _has_blank([sent.text(p.value.result()) for p in before]):
                    break
                has_begun = True
                yield part
            if has_begun:
                await asyncio.wrap_future(sent.finish)
                await sent.atell()
        except WeftlineError as error:
            if has_begun:
                raise
            self._warn(error)
        finally:
            sent.leave()
        if not has_begun:
            made: Any = await self._aplainly(query, chunks, options)
            if isinstance(made, str):
                yield made
            else:
                async for part in made:
                    yield part

    def _plainly(
        self, query: str, chunks: Sequence[str], options: Mapping[str, Any]
    ) -> RESPONSE_TEXT_TYPE:
        """The answer of LlamaIndex's own synthesizer."""
        made: RESPONSE_TEXT_TYPE = self._inner.get_response(query, chunks, **options)
        return made

    async def _aplainly(
        self, query: str, chunks: Sequence[str], options: Mapping[str, Any]
    ) -> RESPONSE_TEXT_TYPE:
        made: RESPONSE_TEXT_TYPE = await self._inner.aget_response(query, chunks, **options)
        return made

    def _after(
        self, error: WeftlineError, query: str, chunks: Sequence[str], options: Mapping[str, Any]
    ) -> RESPONSE_TEXT_TYPE:
        self._warn(error)
        return self._plainly(query, chunks, options)

    def _warn(self, error: WeftlineError) -> None:
        _report.set(None)
        llm: Any = self._llm
        llm.asking.warn(error)

    def _join(self, answers: Sequence[str], options: Mapping[str, Any]) -> str:
        if not isinstance(self._inner, Accumulate):
            return answers[-1]
        return self._inner._format_response(list(answers), options.get("separator", SEPARATOR))

    def get_response_from_messages(
        self, query_str: str, message_chunks: Sequence[ChatMessage], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        made: RESPONSE_TEXT_TYPE = self._inner.get_response_from_messages(
            query_str, message_chunks, **response_kwargs
        )
        return made

    async def aget_response_from_messages(
        self, query_str: str, message_chunks: Sequence[ChatMessage], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        made: RESPONSE_TEXT_TYPE = await self._inner.aget_response_from_messages(
            query_str, message_chunks, **response_kwargs
        )
        return made

    def _prepare_response_output(
        self, response_str: RESPONSE_TEXT_TYPE | None, source_nodes: list[NodeWithScore]
    ) -> RESPONSE_TYPE:
        response = super()._prepare_response_output(response_str, source_nodes)
        report = _report.get()
        if report is not None and response.metadata is not None:
            report.of(source_nodes)
            response.metadata[REPORT] = report
        return response


class _Sent:
    """A synthesis that runs in the server."""

    def __init__(self, llm: Any, plan: CallPlan, parts: bool) -> None:
        self._llm = llm
        around = SPANS.run_now(llm)
        run = around or begin_run(llm.asking.server, None)
        self._own = None if around else run
        self.finish: Future[None] = Future()
        self._on_graph = llm.on_graph
        self.graph = SubmittedGraph(plan, run, parts=parts, on_graph=self._take)
        self.report = Report(plan, self.graph.variables)

    def start(self) -> None:
        self.graph.start()
        self.graph.when_over(self._over)

    def _take(self, graph: Mapping[str, Any]) -> None:
        self.report.fill(graph)
        if self._own is not None and self._on_graph is not None:
            self._on_graph(dict(graph))

    def _over(self) -> None:
        if not self.finish.done():
            self.finish.set_result(None)

    def text(self, value: Any) -> str:
        return str(value.value)

    def tell(self) -> None:
        """Make the calls again in the client, which gets their answers from the values.

        In this way LlamaIndex's events and callbacks get every call, and its token counter counts
        them.
        """
        with self._llm.asking.answering(self.graph):
            for messages, fields in self.graph.asked():
                if self._llm.is_chat_model:
                    self._llm.chat(_chat(messages), **fields)
                else:
                    self._llm.complete(messages[0][1], formatted=True, **fields)

    async def atell(self) -> None:
        """Like `tell`, for a coroutine."""
        with self._llm.asking.answering(self.graph):
            for messages, fields in self.graph.asked():
                if self._llm.is_chat_model:
                    await self._llm.achat(_chat(messages), **fields)
                else:
                    await self._llm.acomplete(messages[0][1], formatted=True, **fields)

    def leave(self) -> None:
        self.graph.abandon()
        if self._own is not None:
            self._own.finish()


def _chat(messages: Sequence[tuple[str, str]]) -> list[ChatMessage]:
    return [ChatMessage(role=role, content=text) for role, text in messages]


def _has_blank(answers: Sequence[str]) -> bool:
    """Whether an answer is blank. LlamaIndex leaves such an answer out of the next prompt."""
    return not all(answer.strip() for answer in answers)


def _parts(made: Any) -> Generator[str, None, None]:
    if isinstance(made, str):
        yield made
    else:
        yield from made
