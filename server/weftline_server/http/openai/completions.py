"""POST /v1/chat/completions and /v1/completions: each choice is a call of a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import WeftlineError
from weftline_server.graph.primitive import Task
from weftline_server.http.direct import Direct
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.openai import tool_runs
from weftline_server.http.openai.replies import (
    CHAT,
    TEXT,
    ReplyForm,
    deltas_of,
    finish_reason,
    logprobs_body,
)
from weftline_server.http.openai.requests import ChatRequest, CompletionRequest, StreamOptions
from weftline_server.http.openai.running_usage import usage_so_far
from weftline_server.http.openai.submission import Body, Running, start
from weftline_server.http.openai.surface import OpenAIRoute, check
from weftline_server.http.state import asking
from weftline_server.lowering.kinds.prompt import call_of, outputs_of
from weftline_server.lowering.result_values import thinking_of
from weftline_server.observe.view import output_step
from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.thinking_block import Thinking
from weftline_server.prompt.tool_parser import Called, Delta, Unfinished
from weftline_server.runtime.service import Service
from weftline_server.session.task import PrimitiveTimes

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["openai"], route_class=Direct)


@router.post(
    "/chat/completions",
    openapi_extra=schema(ChatRequest),
    response_model=None,
)
async def chat(request: Request) -> Response:
    """One chat completion, whole or streamed."""
    service, tenant = asking(request)
    body = await read(request, ChatRequest, partial(check, OpenAIRoute.CHAT))
    if body.weftline is not None and body.weftline.run_tools:
        return await tool_runs.respond(request, service, tenant, body)
    return await _complete(request, service, tenant, body, CHAT)


@router.post(
    "/completions",
    openapi_extra=schema(CompletionRequest),
    response_model=None,
)
async def complete(request: Request) -> Response:
    """One text completion, whole or streamed."""
    service, tenant = asking(request)
    body = await read(request, CompletionRequest, partial(check, OpenAIRoute.TEXT))
    return await _complete(request, service, tenant, body, TEXT)


@dataclass(slots=True)
class ReplyChoice:
    """One choice of a response, and how much of it has been sent."""

    running: Running
    index: int
    task: Task
    calls_tools: bool
    thinking: Thinking
    tokens: int = 0  # tokens whose log probabilities were sent
    chars: int = 0  # the length of these tokens' text

    @staticmethod
    def of(running: Running, index: int, task: Task) -> ReplyChoice:
        """ReplyChoice number `index`, which `node` generates."""
        call, [output] = call_of(task), outputs_of(task)
        thinking = thinking_of(call, output, running.service.engines.model(call.model).prompter)
        return ReplyChoice(running, index, task, bool(call.offered_tools), thinking)

    @property
    def step(self) -> PrimitiveTimes | None:
        """The step that generates the choice; None until it has begun."""
        return output_step(self.running.session, self.task.writes[0])

    async def whole(self) -> dict[str, Any]:
        """The choice once it is complete. Raises the error of its call."""
        running = self.running
        variable = await running.service.readers.get(running.session, self.task.writes[0])
        value = variable.value if self.calls_tools else variable.text
        if not self.calls_tools and self.thinking is not Thinking.NONE:
            value = message_of(AnswerParser(self.thinking, None), variable.text)
        step = self.step
        assert step is not None, "a ready output has a step"
        await running.keep_thoughts([self.task])
        return running.reply.choice(self.index, value, step, self.logprobs())

    async def counted(self) -> AsyncIterator[str | dict[str, Any]]:
        """The same chunks, each with the usage of the choice so far."""
        async for chunk in self.chunks(counted=True):
            assert not isinstance(chunk, str), "a chunk that is counted is data"
            yield {**chunk, "usage": usage_so_far(self.running.session, [self.task])}

    async def chunks(self, *, counted: bool = False) -> AsyncIterator[str | dict[str, Any]]:
        """The choice in chunks as it is generated, each JSON or data that becomes JSON. Those that
        are `counted` are data."""
        reply = self.running.reply
        yield reply.chunk(self.index, {"content": ""}, first=True)
        is_text = not self.calls_tools and self.thinking is Thinking.NONE
        plain = is_text and not self.running.body.wants_logprobs and not counted
        text_chunk = reply.text_chunk(self.index)
        calls = 0
        if plain:
            service = self.running.service
            async for chunk in service.readers.stream(self.running.session, self.task.writes[0]):
                yield text_chunk(chunk.text)
        else:
            async for deltas in self.deltas():
                calls += sum(isinstance(one, Called) for one in deltas)
                calls -= sum(isinstance(one, Unfinished) for one in deltas)
                for part in self._parts(deltas_of(deltas)):
                    yield part
        step = self.step
        assert step is not None and step.reason is not None, "the stream has ended"
        finish = finish_reason(step.reason, calls > 0)
        yield reply.chunk(self.index, {}, logprobs=self.logprobs(), finish=finish)

    async def deltas(self) -> AsyncIterator[Sequence[Delta]]:
        """The parts of the choice as they are generated: its text, and calls of tools."""
        service, session, variable = self.running.service, self.running.session, self.task.writes[0]
        if self.calls_tools:
            async for deltas in service.readers.answer(session, variable, _has_come):
                yield deltas
            await self.running.keep_thoughts([self.task])
        else:
            parser = AnswerParser(self.thinking, None)
            async for chunk in service.readers.stream(session, variable):
                yield parser.feed(chunk.text)
            yield parser.end()

    def _parts(self, deltas: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The chunks for new `deltas`, of which the first has the new log probabilities."""
        logprobs = self.logprobs()
        if logprobs is not None and not deltas:
            deltas = [{}]
        for delta in deltas:
            yield self.running.reply.chunk(self.index, delta, logprobs=logprobs)
            logprobs = None

    def logprobs(self) -> dict[str, Any] | None:
        """The log probabilities of the tokens since the last call of this method.

        None if the request does not ask for them, or if tokens were sent and none has come since.
        """
        if not self.running.body.wants_logprobs:
            return None
        step = self.step
        new = [] if step is None else step.logprobs[self.tokens :]
        if not new and self.tokens:
            return None
        body = logprobs_body(self.running.reply.shape, new, self.chars)
        self.tokens += len(new)
        self.chars += sum(len(token.text) for token in new)
        return body


def _has_come(deltas: Sequence[Delta]) -> bool:
    """Any part of an answer is sent on, or held back only until more of it has come."""
    return True


def choices_of(running: Running) -> list[ReplyChoice]:
    """The choices of the response, of which nothing has been sent."""
    return [ReplyChoice.of(running, index, task) for index, task in enumerate(running.tasks)]


async def _complete(
    request: Request, service: Service, tenant: str, body: Body, shape: ReplyForm
) -> Response:
    """The response to `body`, whole or as a stream."""
    running = await start(request, service, tenant, body, shape)
    if body.stream:
        return EventStream(_events(running, body.stream_options or StreamOptions()))
    try:
        reading = asyncio.gather(*(choice.whole() for choice in choices_of(running)))
        choices = await or_disconnect(request, reading)
        running.runs.responded(running.session)
        return JSONResponse(running.reply.whole(choices, await running.usage(running.tasks)))
    except WeftlineError as error:
        body.name_field(error)
        raise
    finally:
        running.end()


async def _events(running: Running, options: StreamOptions) -> AsyncGenerator[bytes, None]:
    """Chunks as the text is generated. The calls end with the stream, whichever side ends it."""
    try:
        choices = choices_of(running)
        streams = [choice.counted() if options.counts else choice.chunks() for choice in choices]
        async with aclosing(_merged(streams)) as chunks:
            async for chunk in chunks:
                yield sse(None, chunk)
                running.runs.responded(running.session)
        usage = b""
        if options.include_usage:
            usage = sse(None, running.reply.usage_chunk(await running.usage(running.tasks)))
        yield usage + sse(None, "[DONE]")
    except WeftlineError as error:
        running.body.name_field(error)
        yield sse(None, error.to_body())
    finally:
        running.end()


async def _merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[T, None]:
    """The items of all `streams` as they arrive. The first failure of a stream is raised."""
    if len(streams) == 1:
        async for chunk in streams[0]:
            yield chunk
        return
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(len(streams))

    async def pump(stream: AsyncIterator[T]) -> None:
        try:
            async for chunk in stream:
                await queue.put(chunk)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            match await queue.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case chunk:
                    yield chunk
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
